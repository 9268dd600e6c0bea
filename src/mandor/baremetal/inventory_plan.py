"""Plan for an inventory: the nodes for its machines, and the claims that its figures include by now."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mandor.baremetal.machine import Machine
from mandor.lib.steps import WRITTEN, Steps, pieces
from mandor.model.claim import DEDICATED
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeSpec, NodeStatus, Occupied, Taint
from mandor.model.resources import Resources
from mandor.model.vm_request import MIB, VmRequest
from mandor.store.base import Delete, Put, Write

SOME = 50
"""Machines that are compared in one step of the event loop."""
ABSENT = "the inventory no longer lists this machine"


@dataclass(frozen=True, slots=True)
class InventoryState:
    """The stored objects that the plan needs."""

    nodes: Mapping[str, Node]
    claims: Mapping[str, Sequence[Instance]]
    """Claims by node."""
    requests: Mapping[str, VmRequest]
    """Requests by the key of their claim, as text."""


@dataclass(slots=True)
class InventoryPlan:
    commits: list[list[Write]] = field(default_factory=list)
    """Writes per commit; a commit replaces a claim by the inventory's figures atomically."""
    taken: list[str] = field(default_factory=list)
    """Names of machines that are skipped, because a node with an agent has the same name."""


def plan_inventory(
    machines: Sequence[Machine], seen: InventoryState, name: str, began_at: float, now: float
) -> Steps[InventoryPlan]:
    """`began_at`: when the list was requested; virtual machines that were confirmed later may be missing in it."""
    plan = InventoryPlan()
    for piece in pieces(machines, SOME):
        for machine in piece:
            node = seen.nodes.get(machine.name)
            if node is not None and node.status.inventory != name:
                plan.taken.append(machine.name)
                continue
            after = _node(machine, node, name, now)
            shown = _shown(machine, seen, began_at)
            if after != node or shown:
                # The node is written even if only a claim is deleted, so that a bind decided earlier conflicts.
                plan.commits.append([Put(after), *shown])
        yield 2 * WRITTEN * len(piece)
    listed = {each.name for each in machines}
    for node in seen.nodes.values():
        if node.status.inventory == name and node.meta.name not in listed:
            plan.commits += _gone(node, seen, now)
    return plan


def _node(machine: Machine, before: Node | None, name: str, now: float) -> Node:
    spec = before.spec if before is not None else NodeSpec()
    others = tuple(each for each in spec.taints if each.key != DEDICATED)
    spec = msgspec.structs.replace(
        spec, pool=machine.pool, taints=(*others, Taint(DEDICATED)) if machine.dedicated else others
    )
    phase = NodePhase.READY if machine.ready else NodePhase.DOWN
    known = before.status if before is not None else NodeStatus(phase=NodePhase.UNKNOWN)
    facts = dict(machine.labels)
    if machine.max_vms is not None:
        facts["vm.quota"] = str(machine.max_vms)
    if machine.dedicated:
        facts[DEDICATED] = "true"
    if machine.storage is not None:
        facts["storage"] = str(machine.storage)
    if machine.model:
        facts["model"] = machine.model
    status = msgspec.structs.replace(
        known,
        phase=phase,
        reason="" if machine.ready else "the inventory reports this machine as not ready",
        since=known.since if known.phase is phase else now,
        address=machine.ip,
        capacity=Resources(machine.cpu * 1000, machine.memory * MIB),
        facts=facts,
        inventory=name,
        occupied=Occupied(
            cpu_milli=machine.used_cpu_milli,
            memory_bytes=machine.used_memory_mib * MIB,
            machines=machine.vm_count,
        ),
    )
    meta = before.meta if before is not None else Meta(name=machine.name)
    return Node(meta=meta, spec=spec, status=status)


def _shown(machine: Machine, seen: InventoryState, began_at: float) -> list[Write]:
    """Return writes for the claims of confirmed virtual machines that the machine's figures include."""
    writes: list[Write] = []
    for claim in seen.claims.get(machine.name, ()):
        request = seen.requests.get(str(claim.key))
        if request is None or request.status.state != "Confirmed" or request.status.counted:
            continue
        if request.status.since < began_at and machine.shows(request.spec.vm) and len(writes) < 96:
            counted = request.changed(status=msgspec.structs.replace(request.status, counted=True))
            writes += [Delete(claim.key, claim.meta.version), Put(counted)]
    return writes


def _gone(node: Node, seen: InventoryState, now: float) -> list[list[Write]]:
    if not seen.claims.get(node.meta.name):
        return [[Delete(node.key, node.meta.version)]]
    if node.status.reason == ABSENT:
        return []
    status = msgspec.structs.replace(node.status, phase=NodePhase.DOWN, reason=ABSENT, since=now)
    return [[Put(node.changed(status=status))]]
