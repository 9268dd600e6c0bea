"""One decision: the node for an instance, or the reason why there is none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mandor.model.meta import Key
from mandor.model.placement import PlacementRule
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.luck import lots
from mandor.placement.framework.points import Happening, Plugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault, Verdict, run_filters, run_post_filters, run_scores
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Overrun, Unwatched, Watch
from mandor.placement.row import best_slot

AVOIDED = "avoid nodes where it failed"
DISLIKED = "others want to be apart from it"
"""What can be given up besides its own `should` rules, as `relaxed` tells it."""


@dataclass(frozen=True, slots=True)
class Decision:
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
    nominated: str = ""
    """There is none yet, but there will be room on this node."""
    ask: Ask | None = field(default=None, compare=False)
    """What was decided on, without the rules that were given up."""
    state: CycleState = field(default_factory=CycleState, compare=False)
    """What the plugins wrote down, for the points to come."""


def decide(
    profile: Profile,
    ask: Ask,
    nodes: Snapshot,
    *,
    nominated: str = "",
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
) -> Decision:
    """All rules first; then without the soft ones, one by one, until something fits; then whoever makes room.

    `nominated`: the node where room was made for it, which it takes if it fits there.
    """
    watch = watch or Unwatched()
    try:
        return _decide(profile, ask, nodes, nominated, consulted, watch)
    except PluginFault as fault:
        return Decision(ask.key, message=str(fault), fault=fault.plugin)
    except Overrun:
        return broken_off(ask.key, watch.current)
    finally:
        watch.end()


def _decide(
    profile: Profile,
    ask: Ask,
    nodes: Snapshot,
    nominated: str,
    consulted: Mapping[str, object] | None,
    watch: Watch,
) -> Decision:
    for eased, relaxed in _ladder(ask, disliked=nodes.census.disliked(ask.who)):
        state = CycleState(consulted)
        found = find_node(profile, state, eased, nodes, watch, nominated=nominated)
        if isinstance(found, str):
            return Decision(ask.key, found, relaxed=relaxed, ask=eased, state=state)
        verdict = found
    # What the last step lacked, even with every soft rule given up, is what keeps it waiting.
    room = run_post_filters(profile, state, eased, nodes, watch)
    refused = tuple(plugin for plugin, _ in verdict.refusals)
    message = verdict.explain(eased, nodes) + (f"; there will be room on {room}" if room else "")
    retry_on = frozenset({Happening.NODE_ADDED}).union(*(plugin.retry_on for plugin in refused))
    return Decision(ask.key, message=message, retry_on=retry_on, blamed=refused, nominated=room, state=state)


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
    for eased, _ in _ladder(ask, disliked=True):
        last = eased
    return last


def _ladder(ask: Ask, *, disliked: bool) -> Iterator[tuple[Ask, tuple[str, ...]]]:
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
