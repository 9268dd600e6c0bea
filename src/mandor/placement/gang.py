"""A gang: instances that are placed together or not at all, tried out on the table before any of it counts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.workload import Workload
from mandor.placement.cycle import AVOIDED, DISLIKED, Decision, broken_off, find_node, shown
from mandor.placement.framework.ask import Ask, Membership
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import Happening, Plugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault, Verdict
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Overrun, Unwatched, Watch
from mandor.placement.table import Table

T = TypeVar("T")
Guard = Callable[[Callable[[], T]], T]
Rung = tuple[tuple[Ask, ...], tuple[str, ...]]
"""The asks of all members with what is left of their rules, and what was given up."""

_NOBODY = Key("", "", "")
_BEGINNINGS_MOST = 4
"""So often the table may have changed under it; then it is decided in one go."""


@dataclass(frozen=True, slots=True)
class GangDecision:
    """Nodes for enough of the members, or for none of them."""

    placed: tuple[Decision, ...] = ()
    """In the order in which they were decided."""
    fitted: int = 0
    """So many found a node on the scratch table, whether it was enough or not."""
    refused: Decision | None = None
    """The first that found none when all soft rules were given up: why the others do not get theirs."""
    fault: str = ""
    message: str = ""
    """What went wrong, if a plugin did."""


def refusal(decision: GangDecision, needed: int, bound: int) -> str:
    """Why nobody of the gang gets a node."""
    worst = decision.refused
    assert worst is not None, "each that did not fit was refused by somebody"
    have = f"{bound} have a node, {decision.fitted} more would fit" if bound else ""
    would = have or f"{decision.fitted} would fit"
    return f"the gang needs {needed}: {would}; {worst.key.name} does not: {worst.message}"


def membership(instance: Instance, workload: Workload) -> Membership | None:
    """The gang an instance belongs to; None: it is placed by itself."""
    group = workload.spec.groups.get(instance.spec.group)
    if group is None or group.gang is None:
        return None
    gang = (instance.meta.namespace, instance.spec.workload, instance.spec.group)
    return Membership(gang, workload.spec.gang_of(instance.spec.group), float(group.gang.timeout))


def unguarded(work: Callable[[], T]) -> T:
    return work()


class GangTrial:
    """Decides the members one after another, each with those before it counted, as often as there are rules to give up.

    Between two steps the table is as it was; whoever looks at it then does not see the trial. When it has changed
    meanwhile, the trial begins anew: what comes out is what one step for all of them would have given.
    """

    def __init__(
        self,
        profile: Profile,
        asks: Sequence[Ask],
        table: Table,
        *,
        least: int,
        consulted: Mapping[Key, Mapping[str, object]] | None = None,
        watch: Watch | None = None,
        guard: Guard = unguarded,  # type: ignore[type-arg]
    ) -> None:
        """`least`: so many of these have to fit. `guard` calls what calls plugins."""
        self._profile = profile
        # By name, whatever their order in the queue was: equal members give equal outcomes.
        self._asks = tuple(sorted(asks, key=lambda ask: (ask.key.namespace, len(ask.key.name), ask.key.name)))
        self._table = table
        self._least = least
        self._consulted = consulted or {}
        self._watch = watch or Unwatched()
        self._guard = guard
        self._version = table.version
        self._beginnings = 0
        self._begin()

    def _begin(self) -> None:
        self._beginnings += 1
        self._rungs = list(_ladder(self._asks, self._table.snapshot()))
        self._climb()

    def _climb(self) -> None:
        self._next = 0
        self._placed: list[Decision] = []
        self._refused: Decision | None = None
        self._alike: dict[Ask, None] = {}
        """Those of whose like one was refused, since the last that was placed."""

    def step(self, most: int) -> GangDecision | None:
        """Decide so many; None: it is not decided yet."""
        if self._table.version != self._version:
            self._version = self._table.version
            self._begin()
        if self._beginnings < _BEGINNINGS_MOST:
            return self._walk(most)
        found = None
        while found is None:
            found = self._walk(len(self._asks))
        return found

    def _walk(self, most: int) -> GangDecision | None:
        last = min(self._next + most, len(self._asks))
        try:
            with self._table.trial():
                self._replay()
                for index in range(self._next, last):
                    self._decide(index)
        except PluginFault as fault:
            return GangDecision(fault=fault.plugin, message=str(fault))
        except Overrun:
            return GangDecision(fault=self._watch.current, message=broken_off(_NOBODY, self._watch.current).message)
        finally:
            self._watch.end()
        self._next = last
        if last < len(self._asks):
            return None
        return self._rung_is_over()

    def _rung_is_over(self) -> GangDecision | None:
        if len(self._placed) >= self._least:
            return GangDecision(tuple(self._placed), len(self._placed), self._refused)
        if len(self._rungs) == 1:
            return GangDecision((), len(self._placed), self._refused)
        del self._rungs[0]
        self._climb()
        return None

    def _replay(self) -> None:
        for each in self._placed:
            assert each.ask is not None
            self._table.set_charge(each.key, each.node, each.ask.shape, each.ask.who)

    def _decide(self, index: int) -> None:
        asks, relaxed = self._rungs[0]
        ask = asks[index]
        alike = structs.replace(ask, key=_NOBODY)
        if alike in self._alike:
            return
        state = CycleState(self._consulted.get(ask.key))
        nodes = self._table.snapshot()
        found: str | Verdict = self._guard(lambda: find_node(self._profile, state, ask, nodes, self._watch))
        if isinstance(found, str):
            self._alike.clear()
            self._placed.append(Decision(ask.key, found, relaxed=relaxed, ask=ask, state=state))
            self._table.set_charge(ask.key, found, ask.shape, ask.who)
            return
        if self._profile.by_class:
            self._alike[alike] = None
        if self._refused is None:
            self._refused = self._guard(lambda: _refusal(found, ask, nodes))


def _refusal(verdict: Verdict, ask: Ask, nodes: Snapshot) -> Decision:
    blamed: tuple[Plugin, ...] = tuple(plugin for plugin, _ in verdict.refusals)
    retry_on = frozenset({Happening.NODE_ADDED}).union(*(plugin.retry_on for plugin in blamed))
    return Decision(ask.key, message=verdict.explain(ask, nodes), retry_on=retry_on, blamed=blamed)


def _ladder(asks: tuple[Ask, ...], nodes: Snapshot) -> Iterator[Rung]:
    """As for one instance, but each rung is for all members at once."""
    relaxed: tuple[str, ...] = ()
    yield asks, relaxed
    if any(ask.avoid for ask in asks):
        asks = tuple(ask.without_avoid() for ask in asks)
        relaxed += (AVOIDED,)
        yield asks, relaxed
    if any(_disliked(ask, nodes) for ask in {(ask.shape, ask.who): ask for ask in asks}.values()):
        asks = tuple(ask.without_others_should() for ask in asks)
        relaxed += (DISLIKED,)
        yield asks, relaxed
    while any(_soft(ask) for ask in asks):
        given_up = {shown(ask.hard[-1]): None for ask in asks if _soft(ask)}
        asks = tuple(ask.without_last_should() if _soft(ask) else ask for ask in asks)
        relaxed += tuple(given_up)
        yield asks, relaxed


def _soft(ask: Ask) -> bool:
    return ask.dropped < len(ask.shape.should)


def _disliked(ask: Ask, nodes: Snapshot) -> bool:
    """By somebody who is placed, or by its fellows once they are."""
    fellows = (tie for tie in ask.shape.ties(ask.who) if tie.selector.matches(ask.who))
    return nodes.census.disliked(ask.who) or any(tie.kind == "apart" and tie.strength == "should" for tie in fellows)
