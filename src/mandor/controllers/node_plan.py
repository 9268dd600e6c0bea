"""Plan for nodes: Ready, Suspect or Down by their silence; what ran on a lost one is Lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mandor.lib.quantity import NEVER, Seconds
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.workload import Group


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """How patient the cluster is with silent nodes."""

    suspect_seconds: float = 20.0
    """Silent for so long: nothing new goes there."""
    lost_seconds: float = 60.0
    """Silent for so long: Down, and its instances Lost; a workload may say otherwise (`disconnect.lost_after`)."""
    tick_seconds: float = 1.0
    gap_seconds: float = 15.0
    """The observer itself was away for longer than this: everyone gets the whole grace again."""
    mass_share: float = 0.5
    """More than this share of a pool silent at once is not taken for so many dead nodes."""
    mass_least: int = 3
    """In pools of at least so many nodes."""
    mass_window_seconds: float = 300.0
    trickle_seconds: float = 30.0
    """While that lasts, one node of the pool is given up in each such time."""
    losses_most: int = 200
    """So many instances are given up in one tick: whoever replaces them, and the nodes where they go, keep up."""


@dataclass(frozen=True, slots=True)
class NodeSeen:
    node: Node
    heard: bool
    silence_seconds: float
    wants: bool = False
    """It has been silent long enough for itself or one of its instances to be given up."""


@dataclass(frozen=True, slots=True)
class Permits:
    """Which silent nodes may be given up, and since when; carried from tick to tick."""

    given: Mapping[str, float] = field(default_factory=dict)
    last: Mapping[str, float] = field(default_factory=dict)
    """When the last one was given, by pool."""
    mass: frozenset[str] = frozenset()
    """Pools in which too many are silent at once."""


def permit(
    unheard: Sequence[NodeSeen], heard: Mapping[str, int], before: Permits, times: NodeTimes, now: float
) -> Permits:
    """All that want it, but where a pool falls silent as a whole: there one by one. `heard`: how many are, by pool.

    Such a silence is rather a broken network than so many dead machines, and replacing everything
    would stop what still runs when the machines are heard again.
    """
    given = _still_given(unheard, before)
    last = dict(before.last)
    mass: set[str] = set()
    pools: dict[str, list[NodeSeen]] = {}
    for each in unheard:
        pools.setdefault(each.node.spec.pool, []).append(each)
    for pool, members in pools.items():
        wanting = [each for each in members if each.wants and each.node.meta.name not in given]
        if _mass_silence(members, heard.get(pool, 0), given, times, now):
            mass.add(pool)
            due = now - last.get(pool, float("-inf")) >= times.trickle_seconds
            wanting = sorted(wanting, key=lambda each: (-each.silence_seconds, each.node.meta.name))[: 1 if due else 0]
        for each in wanting:
            given[each.node.meta.name] = now
            last[pool] = now
    return Permits(given, last, frozenset(mass))


def _still_given(unheard: Sequence[NodeSeen], before: Permits) -> dict[str, float]:
    """Until it is heard again. A node that was Down before we came has been given up long ago."""
    return {
        each.node.meta.name: before.given.get(each.node.meta.name, float("-inf"))
        for each in unheard
        if each.node.meta.name in before.given or each.node.status.phase is NodePhase.DOWN
    }


def _mass_silence(
    unheard: Sequence[NodeSeen], heard: int, given: Mapping[str, float], times: NodeTimes, now: float
) -> bool:
    recent = gone = 0
    for each in unheard:
        if each.silence_seconds < times.suspect_seconds:
            continue
        given_at = given.get(each.node.meta.name)
        if given_at is None or now - given_at < times.mass_window_seconds:
            recent += 1
        else:
            gone += 1
    counted = heard + len(unheard) - gone
    return counted >= times.mass_least and recent > times.mass_share * counted


def judged(seen: NodeSeen, times: NodeTimes, *, permitted: bool, now: float, mass: str = "") -> Node | None:
    """The node in its new phase; None: it stays as it is. `mass`: why it is not given up though it is silent."""
    status = seen.node.status
    phase = _phase(seen, times, permitted=permitted)
    if phase is not status.phase:
        reason = "" if phase is NodePhase.READY else f"not heard for {Seconds(round(seen.silence_seconds))}"
        if mass and phase is NodePhase.SUSPECT:
            reason = f"{reason}; {mass}"
        return seen.node.changed(status=msgspec.structs.replace(status, phase=phase, reason=reason, since=now))
    silent, _, told = status.reason.partition("; ")
    if phase is not NodePhase.SUSPECT or told == mass:
        return None
    reason = f"{silent}; {mass}" if mass else silent
    return seen.node.changed(status=msgspec.structs.replace(status, reason=reason))


def why_so_slowly(pool: str, times: NodeTimes) -> str:
    """Told of every node of a pool that fell silent as a whole."""
    return f"most of the pool {pool} is silent: one node is given up every {Seconds(times.trickle_seconds)} at most"


def _phase(seen: NodeSeen, times: NodeTimes, *, permitted: bool) -> NodePhase:
    """Only a heartbeat makes a node Ready; as long as silence is short, what was said about it before holds."""
    before = seen.node.status.phase
    if seen.heard:
        return NodePhase.READY
    if seen.silence_seconds >= times.lost_seconds and permitted:
        return NodePhase.DOWN
    if seen.silence_seconds >= times.suspect_seconds and before is not NodePhase.DOWN:
        return NodePhase.SUSPECT
    return before


def lost_after(group: Group | None, times: NodeTimes) -> float:
    """How long its node may be silent before an instance is Lost.

    Never before the node is Suspect; and where the agent stops it by itself after a while, never
    before that is done: a single one must not run twice.
    """
    if group is None:
        return times.lost_seconds
    quiet = group.disconnect
    seconds = times.lost_seconds if quiet.lost_after is None else float(quiet.lost_after)
    if quiet.stop_after != NEVER:
        grace = max(task.stop.grace for task in group.tasks.values())
        seconds = max(seconds, quiet.stop_after + grace + 10)
    return max(seconds, times.suspect_seconds)


def lost(instance: Instance, why: str, now: float) -> Instance:
    if instance.spec.volumes:
        why += f"; its data ({', '.join(instance.spec.volumes)}) is there"
    status: InstanceStatus = msgspec.structs.replace(
        instance.status, phase=Phase.LOST, reason="NodeLost", message=why, ready=False, since=now
    )
    return instance.reported(status)
