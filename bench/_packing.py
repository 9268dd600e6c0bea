"""How well the profile `baremetal` fills machines: against the best-fit of its document, order by order."""

from __future__ import annotations

import random
from typing import Any

from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeSpec, NodeStatus
from mandor.model.resources import Resources
from mandor.model.vm_request import MIB, VmRequest, VmRequestSpec
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.cycle import decide
from mandor.placement.framework.handle import DETACHED
from mandor.placement.profiles import made_with
from tests.property.plain_best_fit import Fleet, Machine, Size

MACHINES, REQUESTS = 20, 400
GIB = 1024
"""MiB"""


def quality(shuffles: int) -> dict[str, Any]:
    """Requests for more than there is, in many orders: how many find room, and where."""
    placed = plainly = other = fewer = 0
    for seed in range(shuffles):
        rng = random.Random(seed)
        machines = [_machine(f"bm-{number:03}", rng) for number in range(MACHINES)]
        requests = [
            Size(cpu := rng.choice((1, 2, 4, 8, 16)), cpu * rng.choice((1, 2, 4, 8)) * GIB) for _ in range(REQUESTS)
        ]
        ours, fleet = _by_profile(machines, requests), Fleet(machines)
        plain = [fleet.place(size) for size in requests]
        placed, plainly = placed + _placed(ours), plainly + _placed(plain)
        fewer += _placed(ours) < _placed(plain)
        other += sum(one != another for one, another in zip(ours, plain, strict=True))
    return {
        "orders": shuffles,
        "requests": REQUESTS * shuffles,
        "placed": placed,
        "placed_by_plain_best_fit": plainly,
        "orders_worse": fewer,
        "other_choices": other,
    }


def _machine(name: str, rng: random.Random) -> Machine:
    return Machine(name, rng.choice((16, 32, 64)), rng.choice((64, 128, 256)) * GIB, quota=rng.choice((None, 16, 32)))


def _placed(where: list[str]) -> int:
    return sum(map(bool, where))


def _by_profile(machines: list[Machine], requests: list[Size]) -> list[str]:
    profile = made_with(None, DETACHED)["baremetal"]
    board, found = ClusterModel(map(_node, machines)), []
    for number, size in enumerate(requests):
        spec = VmRequestSpec(cpu=size.cpu, memory_mib=size.memory)
        claim = VmRequest(meta=Meta(name=f"t{number}", namespace="default"), spec=spec).claim
        request = board.request(claim)
        assert request is not None
        node = decide(profile, request, board.table.snapshot()).node
        if node:
            board.put(claim.bound(node, at=1.0))
        found.append(node)
    return found


def _node(machine: Machine) -> Node:
    status = NodeStatus(
        phase=NodePhase.READY,
        capacity=Resources(machine.cpu * 1000, machine.memory * MIB),
        facts={} if machine.quota is None else {"vm.quota": str(machine.quota)},
        inventory="bench",
    )
    return Node(meta=Meta(name=machine.name), spec=NodeSpec(), status=status)
