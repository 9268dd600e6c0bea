"""One decision: the node for an instance, or the reason why there is none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec import Struct, field, structs
from numpy.typing import NDArray

from mandor.model.meta import Key
from mandor.model.placement import PlacementRule
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import NOBODY
from mandor.placement.framework.luck import lots
from mandor.placement.framework.points import ANYTHING, Happening, Nomination, Plugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.rehearsal import Rehearsal, run_post_filters
from mandor.placement.framework.runtime import PluginFault, Verdict, run_filters, run_scores
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Overrun, Unwatched, Watch
from mandor.placement.row import best_slot

AVOIDED = "avoid nodes where it failed"
DISLIKED = "others want to be apart from it"
"""What can be given up besides its own `should` rules, as `relaxed` tells it."""


NOMINATED = "Nominated"
"""The reason of one that has no node, and for which there will be room on one."""
GOING_MOST = 512
"""So many of those who are about to go are looked at, the soonest first."""


class Moment(Struct, frozen=True):
    """When it is decided, and how long the ask may still wait."""

    now: float = 0.0
    """Wall time."""
    patience: float = 0.0
    """Seconds."""


NOW = Moment()


class Decision(Struct, frozen=True, eq=False):
    key: Key
    node: str = ""
    """Empty: there is none."""
    message: str = ""
    """Why there is none, for people."""
    relaxed: tuple[str, ...] = ()
    """The soft rules that were given up for it, in the order they were."""
    retry_on: frozenset[Happening] = frozenset()
    """What makes another try worthwhile."""
    blamed: tuple[Plugin, ...] = ()
    """Who refused it: their hints say whether something that happened is worth another try."""
    fault: str = ""
    """A plugin went wrong: nothing is known about this instance, and it is tried again later."""
    reason: str = "Unschedulable"
    """Why there is none, in one word for programs."""
    nominated: str = ""
    """There is none yet, but there will be room on this node."""
    victims: tuple[Key, ...] = ()
    """Those who must go for that."""
    displaces: bool = False
    """It takes room there that was held for others of lower priority."""
    again: float | None = None
    """After so many seconds it is tried again, whatever happens."""
    ask: Ask | None = None
    """What was decided on, without the rules that were given up."""
    state: CycleState = field(default_factory=CycleState)
    """What the plugins wrote down, for the points to come."""

    def __eq__(self, other: object) -> bool:
        """What came out is the same, whatever was written down on the way."""
        return isinstance(other, Decision) and structs.astuple(self)[:-2] == structs.astuple(other)[:-2]

    __hash__ = None  # type: ignore[assignment]


def decide(
    profile: Profile,
    ask: Ask,
    nodes: Snapshot,
    *,
    nominated: str = "",
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
    moment: Moment = NOW,
) -> Decision:
    """All rules first; then without the soft ones, one by one, until something fits; then whoever makes room.

    `nominated`: the node where room was made for it, which it takes if it fits there.
    """
    watch = watch or Unwatched()
    try:
        if not nominated and nodes.lodging.lowest_held() is None:
            # Most asks fit with all their rules, and nothing is held: they take the shortest way.
            state = CycleState(consulted)
            slot = best_slot(profile, state, ask, nodes, watch)
            if slot >= 0:
                return Decision(ask.key, nodes.nodes[slot].meta.name, ask=ask, state=state)
        cycle = _Cycle(profile, nodes, watch, consulted, nominated, moment)
        with cycle.unheld(ask) if nominated else nullcontext():
            return _decide(cycle, ask)
    except PluginFault as fault:
        return Decision(ask.key, message=str(fault), fault=fault.plugin)
    except Overrun:
        return broken_off(ask.key, watch.current)
    finally:
        watch.end()


def _decide(cycle: "_Cycle", ask: Ask) -> Decision:
    nodes = cycle.nodes
    rungs = list(ladder(ask, disliked=nodes.census.disliked(ask.who)))
    offers: list[_Offer] = []
    for index, (eased, relaxed) in enumerate(rungs):
        state = CycleState(cycle.consulted)
        found = cycle.find(state, eased)
        if isinstance(found.node, str):
            return Decision(ask.key, found.node, relaxed=relaxed, ask=eased, state=state, displaces=found.displaces)
        verdict = found.node
        offers.append(_Offer(eased, state, relaxed))
        given_up = rungs[index + 1][1][-1] if index + 1 < len(rungs) else AVOIDED
        waits = cycle.wait(eased, given_up) if given_up != AVOIDED else None
        if waits is None and ask.shape.preempt_first:
            waits = cycle.make_room(verdict, offers[-1:])
        if waits is not None:
            return waits
    if not ask.shape.preempt_first:
        waits = cycle.make_room(verdict, offers)
        if waits is not None:
            return waits
    # What the last step lacked, even with every soft rule given up, is what keeps it waiting.
    refused = tuple(plugin for plugin, _ in verdict.refusals)
    return Decision(
        ask.key, message=verdict.explain(eased, nodes), retry_on=_retry_on(refused), blamed=refused, state=state
    )


class _Offer(NamedTuple):
    """An ask without the rules that are given up at this step."""

    ask: Ask
    state: CycleState
    relaxed: tuple[str, ...]


class _Found(NamedTuple):
    node: str | Verdict
    displaces: bool = False


@dataclass(frozen=True, slots=True)
class _Cycle:
    """What the steps of one decision have in common."""

    profile: Profile
    nodes: Snapshot
    watch: Watch
    consulted: Mapping[str, object] | None
    nominated: str
    moment: Moment

    @contextmanager
    def unheld(self, ask: Ask) -> Iterator[None]:
        """The room that is held for it is free for it."""
        with self.nodes.lodging.trial():
            self.nodes.lodging.drop_charge(ask.key)
            yield

    def find(self, state: CycleState, ask: Ask) -> _Found:
        """The best node beside the room that is held for others; if there is none, in the place of those of lower
        priority among them."""
        lodging = self.nodes.lodging
        lowest = lodging.lowest_held()
        if lowest is None:
            return _Found(self._find(state, ask))
        with lodging.trial():
            for node, each in lodging.held() if ask.rules.near else ():
                # Nobody is near to those who are not there yet, and may never be.
                lodging.set_charge(each.key, node, each.shape, NOBODY, each.tenure)
            found = self._find(state, ask)
            if isinstance(found, str) or lowest >= ask.priority:
                return _Found(found)
            for _, each in lodging.held():
                if each.priority < ask.priority:
                    lodging.drop_charge(each.key)
            return _Found(self._find(state, ask), displaces=True)

    def _find(self, state: CycleState, ask: Ask) -> str | Verdict:
        found = find_node(self.profile, state, ask, self.nodes, self.watch, nominated=self.nominated)
        self.watch.end()  # Nobody is broken off while the table is put right again.
        return found

    def wait(self, ask: Ask, given_up: str) -> Decision | None:
        """There will be room soon, so that no rule need be given up."""
        lodging, moment = self.nodes.lodging, self.moment
        going = [
            (lodger.tenure.until, node, lodger)
            for node, lodger in lodging.stopping()
            if lodger.tenure.until is not None and lodger.tenure.until <= moment.now + moment.patience
        ]
        if moment.patience <= 0 or not going:
            return None
        going.sort(key=lambda each: each[:2])
        with lodging.trial():
            for _, _, lodger in going[:GOING_MOST]:
                lodging.drop_charge(lodger.key)
            node = self.find(CycleState(self.consulted), ask).node
        if not isinstance(node, str):
            return None
        names = ", ".join(lodger.key.name for _, where, lodger in going if where == node)
        because = f": {names} will be gone" if names else ""
        return Decision(
            ask.key,
            reason=NOMINATED,
            message=f"waits for room on {node} rather than give up `{given_up}`{because}",
            retry_on=ANYTHING,
            nominated=node,
            again=moment.patience,
        )

    def make_room(self, verdict: Verdict, offers: Sequence[_Offer]) -> Decision | None:
        """Whoever makes room makes it with as many rules kept as can be; and for nobody for whom it is being made."""
        if not self.profile.post_filters:
            return None
        rehearsals = [(self._rehearsal(each.ask), each) for each in offers]
        for rehearsal, offer in rehearsals if self.nominated else ():
            if rehearsal.still_waits():
                return self._nominate(verdict, offer, Nomination(self.nominated))
        for rehearsal, offer in rehearsals:
            made = run_post_filters(self.profile, offer.state, rehearsal, self.watch)
            if made is not None:
                return self._nominate(verdict, offer, made)
        return None

    def _rehearsal(self, ask: Ask) -> Rehearsal:
        return Rehearsal(
            self.profile,
            ask,
            self.nodes,
            self.watch,
            consulted=self.consulted,
            nominated=self.nominated,
            now=self.moment.now,
            patience=self.moment.patience,
        )

    def _nominate(self, verdict: Verdict, offer: _Offer, made: Nomination) -> Decision:
        refused = tuple(plugin for plugin, _ in verdict.refusals)
        names = ", ".join(key.name for key in made.victims)
        how = f"takes the place of {names} on {made.node}" if names else f"there will be room on {made.node}"
        return Decision(
            offer.ask.key,
            reason=NOMINATED,
            message=f"{verdict.explain(offer.ask, self.nodes)}; {how}",
            relaxed=offer.relaxed,
            retry_on=_retry_on(refused) | {Happening.ROOM_FREED},
            blamed=refused,
            nominated=made.node,
            victims=made.victims,
            again=self.moment.patience if self.moment.patience > 0 else None,
            state=offer.state,
        )


def _retry_on(refused: Iterable[Plugin]) -> frozenset[Happening]:
    return frozenset({Happening.NODE_ADDED}).union(*(plugin.retry_on for plugin in refused))


def find_node(
    profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot, watch: Watch, *, nominated: str = ""
) -> str | Verdict:
    """The best node with the rules as they stand in the ask, or who refused which."""
    quick = -1 if nominated else best_slot(profile, state, ask, nodes, watch)
    if quick >= 0:
        return nodes.nodes[quick].meta.name
    verdict = run_filters(profile, state, ask, nodes, watch)
    among = verdict.feasible.nonzero()[0]
    if not len(among):
        return verdict
    slot = nodes.slots.get(nominated) if nominated else None
    held = slot is not None and bool(verdict.feasible[slot])
    return nominated if held else _best(profile, state, ask, nodes, verdict, among, watch)


def broken_off(key: Key, plugin: str) -> Decision:
    return Decision(key, message=f"the plugin {plugin} took too long and was broken off", fault=plugin)


def widest(ask: Ask) -> Ask:
    """With every rule given up that can be: what fits it is all that can ever fit."""
    for eased, _ in ladder(ask, disliked=True):
        last = eased
    return last


def ladder(ask: Ask, *, disliked: bool) -> Iterator[tuple[Ask, tuple[str, ...]]]:
    """The ask with all its rules, then ever fewer: our own `avoid` goes first, then the `should` of others who want
    to be apart from it, then the author's last `should`."""
    relaxed: tuple[str, ...] = ()
    yield ask, relaxed
    if ask.avoid:
        ask = ask.without_avoid()
        relaxed += (AVOIDED,)
        yield ask, relaxed
    if disliked:
        ask = ask.without_others_should()
        relaxed += (DISLIKED,)
        yield ask, relaxed
    while ask.dropped < len(ask.shape.should):
        ask = ask.without_last_should()
        relaxed += (shown(ask.given_up[0]),)
        yield ask, relaxed


def _best(
    profile: Profile,
    state: CycleState,
    ask: Ask,
    nodes: Snapshot,
    verdict: Verdict,
    among: NDArray[np.intp],
    watch: Watch,
) -> str:
    if len(among) > 1:
        totals = run_scores(profile, state, ask, nodes, verdict.feasible, among, watch)
        among = among[totals == totals[totals.argmax()]]
    if len(among) > 1:
        among = among[[lots(ask.who, nodes.order()[among], len(nodes)).argmax()]]
    return nodes.nodes[int(among[0])].meta.name


def shown(rule: PlacementRule) -> str:
    return " or ".join(rule.texts)
