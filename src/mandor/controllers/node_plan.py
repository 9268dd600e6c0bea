"""Plan for nodes: Ready, Suspect or Down by the time since the last heartbeat, and Lost instances."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mandor.lib.quantity import NEVER, Seconds
from mandor.model.group import Group
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """Times and limits for nodes without heartbeats."""

    suspect_seconds: float = 20.0
    """Seconds without heartbeats after which a node is Suspect and gets no new instances."""
    lost_seconds: float = 60.0
    """Seconds without heartbeats after which a node is Down and its instances Lost (see `disconnect.lost_after`)."""
    tick_seconds: float = 1.0  # between two evaluations
    gap_seconds: float = 15.0
    """Seconds after which a pause of the controller itself restarts the time of all nodes."""
    mass_share: float = 0.5
    """Share of a pool's nodes without heartbeats above which a network failure is assumed."""
    mass_least: int = 3
    """Nodes of a pool from which on that is assumed."""
    mass_window_seconds: float = 300.0  # in which nodes marked Down count for that share
    trickle_seconds: float = 30.0
    """Seconds between two nodes of the pool that are marked Down while it is assumed."""
    losses_most: int = 200
    """Instances that are marked Lost per evaluation, to limit the load of replacing them."""


@dataclass(frozen=True, slots=True)
class NodeState:
    node: Node
    heard: bool
    silence_seconds: float
    wants: bool = False
    """Whether the node or one of its instances is due to be given up."""


@dataclass(frozen=True, slots=True)
class LossPermits:
    """Nodes that may be given up, and since when; carried over to the next evaluation."""

    given: Mapping[str, float] = field(default_factory=dict)
    last: Mapping[str, float] = field(default_factory=dict)
    """Time of the last permit, by pool."""
    mass: frozenset[str] = frozenset()
    """Pools in which too many nodes send no heartbeats at the same time."""


def permit(
    unheard: Sequence[NodeState], heard: Mapping[str, int], before: LossPermits, times: NodeTimes, now: float
) -> LossPermits:
    """Permit all nodes that are due, except in a pool that lost most of its nodes: there one by one.

    That is more likely a network failure than as many dead machines, and replacing everything would stop what
    still runs when the machines return. `heard`: number of nodes with heartbeats, by pool.
    """
    given = _earlier_permits(unheard, before)
    last = dict(before.last)
    mass: set[str] = set()
    pools: dict[str, list[NodeState]] = {}
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
    return LossPermits(given, last, frozenset(mass))


def _earlier_permits(unheard: Sequence[NodeState], before: LossPermits) -> dict[str, float]:
    """Return the earlier permits of nodes still without heartbeats. Nodes that are Down already count as permitted."""
    return {
        each.node.meta.name: before.given.get(each.node.meta.name, float("-inf"))
        for each in unheard
        if each.node.meta.name in before.given or each.node.status.phase is NodePhase.DOWN
    }


def _mass_silence(
    unheard: Sequence[NodeState], heard: int, given: Mapping[str, float], times: NodeTimes, now: float
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


def next_state(seen: NodeState, times: NodeTimes, *, permitted: bool, now: float, mass: str = "") -> Node | None:
    """Return the node in its new phase; None if nothing changes. `mass`: why it is not given up yet."""
    status = seen.node.status
    phase = _phase(seen, times, permitted=permitted)
    if phase is not status.phase:
        reason = "" if phase is NodePhase.READY else f"no heartbeat for {Seconds(round(seen.silence_seconds))}"
        if mass and phase is NodePhase.SUSPECT:
            reason = f"{reason}; {mass}"
        return seen.node.changed(status=msgspec.structs.replace(status, phase=phase, reason=reason, since=now))
    silent, _, known = status.reason.partition("; ")
    if phase is not NodePhase.SUSPECT or known == mass:
        return None
    reason = f"{silent}; {mass}" if mass else silent
    return seen.node.changed(status=msgspec.structs.replace(status, reason=reason))


def mass_silence_reason(pool: str, times: NodeTimes) -> str:
    """Return the reason shown on every Suspect node of a pool that lost most of its nodes."""
    pace = Seconds(times.trickle_seconds)
    return f"most nodes of pool {pool} send no heartbeats: at most one is marked Down every {pace}"


def _phase(seen: NodeState, times: NodeTimes, *, permitted: bool) -> NodePhase:
    """Return the phase: only a heartbeat makes a node Ready, and a short silence changes nothing."""
    before = seen.node.status.phase
    if seen.heard:
        return NodePhase.READY
    if seen.silence_seconds >= times.lost_seconds and permitted:
        return NodePhase.DOWN
    if seen.silence_seconds >= times.suspect_seconds and before is not NodePhase.DOWN:
        return NodePhase.SUSPECT
    return before


def lost_after(group: Group | None, times: NodeTimes) -> float:
    """Return the seconds without heartbeats after which an instance is Lost.

    This is never before the node is Suspect, and if the agent stops the instance by itself
    (`disconnect.stop_after`), never before that: a single instance must not run twice.
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
        why += f"; its volumes ({', '.join(instance.spec.volumes)}) are on that node"
    status: InstanceStatus = msgspec.structs.replace(
        instance.status, phase=Phase.LOST, reason="NodeLost", message=why, ready=False, since=now
    )
    return instance.reported(status)
