"""Candidate changes that may let a pending instance run: to its request, to nodes, or to other instances."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from mandor.lib.quantity import Cpu, Size
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase, Taint
from mandor.model.placement import Toleration
from mandor.placement.claims import CLAIM_RANK
from mandor.placement.cycle import widest
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import names_shown
from mandor.placement.framework.ports import AnyPort
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import CPU, DISK, MEMORY, PlacementRequest, Shape
from mandor.placement.framework.runtime import run_filters
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.table import Table

MIB = 1024**2
NEW_NODE = "new-node"
EACH_MOST = 16
"""Changes of one kind that are tried."""


def _same(request: PlacementRequest) -> PlacementRequest:
    return request


@dataclass(frozen=True, slots=True)
class Candidate:
    """A change and its cost; costs only order the changes."""

    kind: str
    text: str
    cost: float
    request: Callable[[PlacementRequest], PlacementRequest] = _same
    nodes: tuple[Node, ...] = ()
    """Nodes as they would be after the change."""
    ends: tuple[Key, ...] = ()
    """Instances that would be gone."""


def candidates(
    profile: Profile, request: PlacementRequest, table: Table, stopping: tuple[Key, ...]
) -> Iterator[Candidate]:
    """Yield changes. `stopping`: instances that are stopping and still hold their resources."""
    if stopping:
        which = f"{len(stopping)} stopping instances"
        if len(stopping) == 1:
            which = names_shown(stopping, request.key.namespace)
        yield Candidate(
            "wait", f"wait until {which} has stopped" if len(stopping) == 1 else f"wait for {which}", 0, ends=stopping
        )
    yield from _of_nodes(table.snapshot())
    yield from _of_rules(request.shape, table.snapshot())
    yield from _less(profile, request, table.snapshot())
    yield from _ends(profile, request, table)
    yield from _more_nodes(table.snapshot())


# Changes of nodes.


def _of_nodes(nodes: Snapshot) -> Iterator[Candidate]:
    closed = [node for node in nodes.nodes if node.closed and node.status.phase is NodePhase.READY]
    for node in closed[:EACH_MOST]:
        yield Candidate("uncordon", f"uncordon {node.meta.name}", 10, nodes=(node.opened,))
    silent = [node for node in nodes.nodes if node.status.phase is not NodePhase.READY and not node.closed]
    for node in silent[:EACH_MOST]:
        phase = node.status.phase.value
        back = node.changed(status=msgspec.structs.replace(node.status, phase=NodePhase.READY))
        yield Candidate("return", f"bring back {node.meta.name}, which is {phase}", 35, nodes=(back,))

    pressed = [node for node in nodes.nodes if node.status.pressure]
    for node in pressed[:EACH_MOST]:
        short = " and ".join(node.status.pressure)
        calm = node.changed(status=msgspec.structs.replace(node.status, pressure=()))
        yield Candidate("pressure", f"free {short} on {node.meta.name}, which is short of it", 15, nodes=(calm,))


def _more_nodes(nodes: Snapshot) -> Iterator[Candidate]:
    """Yield one more node of each existing kind."""
    seen: set[object] = set()
    for node in nodes.nodes:
        kind = (node.spec.pool, str(node.allocatable), node.spec.taints, tuple(sorted(node.status.engines)))
        if kind in seen or len(seen) >= EACH_MOST:
            continue
        seen.add(kind)
        twin = Node(
            meta=Meta(name=NEW_NODE, labels=node.meta.labels),
            spec=node.opened.spec,
            status=msgspec.structs.replace(node.opened.status, phase=NodePhase.READY, pressure=(), usage=None),
        )
        yield Candidate("node", f"add a node like {node.meta.name}", 60, nodes=(twin,))


# Changes of rules.


def _of_rules(shape: Shape, nodes: Snapshot) -> Iterator[Candidate]:
    for taint in _taints(shape, nodes)[:EACH_MOST]:
        tolerate = (*shape.tolerate, Toleration(taint.key, taint.value or None, taint.effect))
        shown = f"{taint.key}={taint.value}" if taint.value else taint.key
        yield _reshaped("tolerate", f"tolerate the taint {shown}", 20, tolerate=tolerate)
    for place, rule in enumerate(shape.must[:EACH_MOST]):
        rest = shape.must[:place] + shape.must[place + 1 :]
        yield _reshaped("rule", f"drop the rule `{' or '.join(rule.texts)}`, or make it `should`", 20, must=rest)
    if shape.pool is not None:
        pools = sorted({node.spec.pool for node in nodes.nodes} - {shape.pool})
        for pool in pools[:EACH_MOST]:
            yield _reshaped("pool", f"use the pool {pool} instead of {shape.pool}", 25, pool=pool)
    if shape.engines:
        yield _reshaped(
            "engine", f"leave out `engine` instead of requiring {' or '.join(shape.engines)}", 25, engines=()
        )
    if shape.host_ports:
        ports = ", ".join(str(each.port) for each in shape.host_ports)
        yield _reshaped("port", f"drop the host port {ports}", 30, host_ports=())
        if not shape.any_ports:
            names = "`host: auto`" if len(shape.host_ports) == 1 else "`host: auto` for each"
            chosen = tuple(AnyPort(str(each.port), each.protocol) for each in shape.host_ports)
            yield _reshaped("port", f"use any port of the node ({names})", 25, host_ports=(), any_ports=chosen)
    if shape.any_ports:
        yield _reshaped("port", "drop the automatic host ports (`host: auto`)", 30, any_ports=())
    if shape.dedicated:
        yield _reshaped("dedicated", "share the node with others (`dedicated: false`)", 25, dedicated=False)


def _taints(shape: Shape, nodes: Snapshot) -> list[Taint]:
    found = {taint for node in nodes.nodes for taint in node.spec.taints if taint.effect != "PreferNoSchedule"}
    return sorted(found, key=lambda taint: (taint.key, taint.value, taint.effect))


def _reshaped(kind: str, text: str, cost: float, **changes: Any) -> Candidate:
    return Candidate(kind, text, cost, request=partial(_with_shape, changes))


_OF_ALL_FORMS = frozenset({"tolerate", "must", "pool", "dedicated"})
"""Fields of a shape that a group shares with its alternatives."""


def _with_shape(changes: dict[str, Any], request: PlacementRequest) -> PlacementRequest:
    # Cached values of a shape do not hold for a changed one.
    common = {name: value for name, value in changes.items() if name in _OF_ALL_FORMS}
    forms = tuple(replace(each, **common, known={}, affinity_cache={}) for each in request.shape.alternatives)
    return msgspec.structs.replace(
        request, shape=replace(request.shape, **changes, alternatives=forms, known={}, affinity_cache={})
    )


# Smaller requests.


def _less(profile: Profile, request: PlacementRequest, nodes: Snapshot) -> Iterator[Candidate]:
    """Yield the smallest reductions that fit on a node without other refusals."""
    wanted = dict(request.shape.wanted)
    if not wanted:
        return
    open_to_it = _open_without(profile, request, nodes, wanted=())
    found: dict[tuple[tuple[str, int], ...], float] = {}
    for slot in open_to_it.nonzero()[0]:
        rest = {name: _rest(name, amount, nodes, int(slot)) for name, amount in wanted.items()}
        if all(amount > 0 for amount in rest.values()):
            less = tuple((name, amount) for name, amount in rest.items() if amount < wanted[name])
            found[less] = sum(1 - amount / wanted[name] for name, amount in less)
    for less in sorted(found, key=lambda each: (len(each), found[each]))[:EACH_MOST] if found else ():
        yield _asking(request, wanted, dict(less), 10 + 50 * found[less])


def _rest(resource: str, amount: int, nodes: Snapshot, slot: int) -> int:
    """Return the free amount of a resource, at most the requested one, rounded down."""
    row = nodes.rows.get(resource)
    free = 0 if row is None else int(nodes.free[row, slot])
    if free >= amount:
        return amount
    return free // MIB * MIB if resource in {MEMORY, DISK} else free


def _asking(request: PlacementRequest, wanted: dict[str, int], less: dict[str, int], cost: float) -> Candidate:
    words = [
        f"{shown(name, amount)} {name} instead of {shown(name, wanted[name])} "
        f"({shown(name, wanted[name] - amount)} less)"
        for name, amount in less.items()
    ]
    amounts = {**wanted, **less}
    counted = (
        min(request.shape.counted[0], amounts.get(CPU, 2**62)),
        min(request.shape.counted[1], amounts.get(MEMORY, 2**62)),
    )
    return _reshaped("less", f"request {' and '.join(words)}", cost, wanted=tuple(amounts.items()), counted=counted)


def shown(resource: str, amount: int) -> str:
    if resource == CPU:
        return str(Cpu(amount))
    return str(Size(amount)) if resource in {MEMORY, DISK} else str(amount)


def _open_without(
    profile: Profile, request: PlacementRequest, nodes: Snapshot, **changes: Any
) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return the nodes that fit a changed request with all soft rules given up."""
    relaxed_request = widest(_with_shape(changes, request))
    return run_filters(profile, CycleState(), relaxed_request, nodes).feasible


# Stopping other instances.


def _ends(profile: Profile, request: PlacementRequest, table: Table) -> Iterator[Candidate]:
    """Yield single instances whose resources are enough, the least important first, then the smallest."""
    nodes = table.snapshot()
    wanted = dict(request.shape.wanted)
    open_to_it = _open_without(profile, request, nodes, wanted=(), host_ports=(), any_ports=())
    found: list[tuple[int, int, Key, str]] = []
    for key, allocation in table.allocations.items():
        slot = nodes.slots.get(allocation.node)
        if slot is None or not open_to_it[slot] or allocation.terms.held or allocation.terms.rank is CLAIM_RANK:
            continue
        taken = dict(allocation.shape.wanted)
        if all(
            int(nodes.free[nodes.rows[name], slot]) + taken.get(name, 0) >= amount
            for name, amount in wanted.items()
            if name in nodes.rows
        ):
            size = taken.get(MEMORY, 0) + taken.get(CPU, 0) * MIB
            found.append((allocation.terms.rank.priority, size, key, allocation.node))
    for _, _, key, node in sorted(found)[:EACH_MOST]:
        yield Candidate("end", f"stop {key.name} on {node}", 45, ends=(key,))
