"""Derives node failures of a recording from the recorded versions of its nodes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import msgspec

from mandor.api.heartbeat import LIVE_SECONDS
from mandor.lib.quantity import Cpu, Size
from mandor.model.node import Node, NodePhase
from mandor.model.volume import HOST_PATHS
from mandor.sim.history import RunInterval
from mandor.sim.recorded import Recorded
from mandor.sim.scenario import Amounts, Limit, NodeLine

BEGIN_SECONDS = 5.0
"""Nodes that are recorded within these seconds existed at the start."""
BOOT = "boot"
UNHEARD_SECONDS = LIVE_SECONDS - 5.0
"""Mean seconds from a node failure to the start of its silence: half a heartbeat interval less than the limit."""
NEVER = float("inf")
SILENT = frozenset({NodePhase.SUSPECT, NodePhase.DOWN})


@dataclass(frozen=True, slots=True)
class NodeOutage:
    at: float
    kind: Literal["down", "up", "partition", "limit"]
    what: object
    """The node's name, or what it is limited to."""
    phase: str = ""


@dataclass(frozen=True, slots=True)
class _NodeVersion:
    at: float
    node: Node | None
    """None: it was removed."""


def _versions(found: Recorded, name: str) -> list[_NodeVersion]:
    first = [_NodeVersion(0.0, each) for each in found.first if isinstance(each, Node) and each.meta.name == name]
    later = [
        _NodeVersion(change.at, change.after if isinstance(change.after, Node) else None)
        for change in found.changes
        if any(isinstance(each, Node) and each.meta.name == name for each in (change.before, change.after))
    ]
    return first + later


def node_line(name: str, found: Recorded) -> NodeLine:
    """Return the node as it was when its agent had first reported its capacity."""
    versions = _versions(found, name)
    known = [each.node for each in versions if each.node is not None]
    node = next((each for each in known if each.status.capacity.cpu_milli), known[0])
    has, reserved = node.status.capacity, node.spec.reserved
    return NodeLine(
        name=name,
        cpu=Cpu(has.cpu_milli),
        memory=Size(has.memory_bytes),
        disk=Size(has.disk_bytes),
        devices=dict(has.devices),
        reserved=Amounts(Cpu(reserved.cpu_milli), Size(reserved.memory_bytes), Size(reserved.disk_bytes)),
        labels=node.meta.labels,
        facts={key: text for key, text in node.status.facts.items() if key not in {BOOT, HOST_PATHS}},
        pool=node.spec.pool,
        taints=node.spec.taints,
        engines=tuple(sorted(node.status.engines)),
        host_paths=tuple(filter(None, node.status.facts.get(HOST_PATHS, "").split(","))),
        off=_comes_at(versions) > BEGIN_SECONDS,
    )


def _there(node: Node | None) -> bool:
    """Return whether the agent has reported the node and the node is not silent."""
    return node is not None and bool(node.status.capacity.cpu_milli) and node.status.phase not in SILENT


def _reported(node: Node | None) -> tuple[object, ...]:
    """Return the fields that the agent reports."""
    return () if node is None else (node.status.capacity, node.status.facts, node.status.engines)


def _comes_at(versions: Sequence[_NodeVersion]) -> float:
    number = next((number for number, each in enumerate(versions) if _there(each.node)), None)
    return NEVER if number is None else _heard_at(versions[: number + 1])


def _heard_at(versions: Sequence[_NodeVersion]) -> float:
    """Return when the agent first reported the current state, which is before the node became Ready."""
    last = versions[-1]
    return next((each.at for each in versions if _reported(each.node) == _reported(last.node)), last.at)


def node_outages(found: Recorded) -> Iterator[NodeOutage]:
    names = dict.fromkeys(
        each.meta.name
        for each in (*found.first, *(side for change in found.changes for side in (change.before, change.after)))
        if isinstance(each, Node)
    )
    for name in names:
        yield from _life(name, _versions(found, name), found)


def _life(name: str, versions: Sequence[_NodeVersion], found: Recorded) -> Iterator[NodeOutage]:
    comes = _comes_at(versions)
    up, last, lost = comes <= BEGIN_SECONDS, 0.0, 0
    first = next((number for number, each in enumerate(versions) if _there(each.node)), len(versions))
    for number, version in enumerate(versions[first:], start=first):
        node = version.node
        if up and not _there(node):
            at = version.at if node is None else max(last + 0.001, version.at - found.suspect_seconds - UNHEARD_SECONDS)
            kind = "down" if node is None else _loss(versions[number:], _boot(versions[:number]))
            up, last, lost = False, at, number
            yield NodeOutage(at, kind, name, f"{name} is {'removed' if node is None else 'lost'}")
        elif not up and _there(node):
            back = _heard_at(versions[lost + 1 : number + 1]) if lost else comes
            up, last = True, max(last + 0.001, back)
            yield NodeOutage(last, "up", name, f"{name} {'is back' if lost else 'joins'}")
    yield from _limits(name, [each for each in versions if _there(each.node)])


def _limits(name: str, versions: Sequence[_NodeVersion]) -> Iterator[NodeOutage]:
    """Yield the changes of capacity."""
    for before, after in pairwise(versions):
        assert before.node is not None, "it is there"
        assert after.node is not None, "it is there"
        now = after.node.status.capacity
        if now != before.node.status.capacity:
            limit = Limit(node=name, cpu=Cpu(now.cpu_milli), memory=Size(now.memory_bytes), disk=Size(now.disk_bytes))
            yield NodeOutage(after.at, "limit", limit)


def _boot(versions: Sequence[_NodeVersion]) -> str:
    return next((each.node.status.facts.get(BOOT, "") for each in reversed(versions) if each.node is not None), "")


def _loss(ahead: Sequence[_NodeVersion], boot: str) -> Literal["down", "partition"]:
    """Return `partition` if the node came back without a reboot, else `down`."""
    back = next((each.node for each in ahead if _there(each.node)), None)
    return "partition" if back is not None and back.status.facts.get(BOOT, "") == boot else "down"


def trimmed(stays: Iterable[RunInterval], found: Recorded) -> list[RunInterval]:
    """End the intervals of instances at the power failure of their node, before the cluster noticed it."""
    lost = [(each.what, each.at) for each in node_outages(found) if each.kind == "down"]
    kept = []
    for stay in stays:
        ends = [at for node, at in lost if node == stay.node and stay.begin <= at < stay.end]
        kept.append(msgspec.structs.replace(stay, end=min(ends)) if ends else stay)
    return kept
