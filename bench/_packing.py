"""How well the profile `baremetal` fills machines: against a best-fit as one would write it down, order by order."""

from __future__ import annotations

import random
from typing import Any

from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeSpec, NodeStatus
from mandor.model.resources import Resources
from mandor.model.vm_task import MIB, VmTask, VmTaskSpec
from mandor.placement.board import Board
from mandor.placement.cycle import decide
from mandor.placement.framework.handle import DETACHED
from mandor.placement.profiles import made_with

MACHINES = 20
GIB = 1024
Size = tuple[int, int]
"""Cores and MiB."""


def quality(shuffles: int) -> dict[str, Any]:
    """Requests for more than there is, in many orders: how many find room."""
    placed = plainly = other = fewer = 0
    for seed in range(shuffles):
        rng = random.Random(seed)
        machines = [(rng.choice((16, 32, 64)), rng.choice((64, 128, 256)) * GIB) for _ in range(MACHINES)]
        asks = [(cpu := rng.choice((1, 2, 4, 8, 16)), cpu * rng.choice((1, 2, 4, 8)) * GIB) for _ in range(400)]
        found, strayed = _by_profile(machines, asks)
        plain = Plain(machines)
        for size in asks:
            plain.place(size)
        placed, plainly, other = placed + found, plainly + plain.placed, other + strayed
        fewer += found < plain.placed
    return {
        "orders": shuffles,
        "requests": 400 * shuffles,
        "placed": placed,
        "placed_by_plain_best_fit": plainly,
        "other_choices": other,
        "orders_with_fewer_where_ties_fell_otherwise": fewer,
    }


class Plain:
    """Of the machines with room, the fullest afterwards (in whole percent); of several, the first."""

    def __init__(self, machines: list[Size]) -> None:
        self._machines = machines
        self._used = [(0, 0)] * len(machines)
        self.placed = 0

    def best(self, size: Size) -> list[int]:
        found: dict[int, int] = {}
        for number, ((cpu, memory), used) in enumerate(zip(self._machines, self._used, strict=True)):
            after = used[0] + size[0], used[1] + size[1]
            if after[0] <= cpu and after[1] <= memory:
                found[number] = (after[0] * 100 // cpu + after[1] * 100 // memory) // 2
        most = max(found.values(), default=0)
        return [number for number, full in found.items() if full == most]

    def put(self, number: int, size: Size) -> None:
        used = self._used[number]
        self._used[number] = used[0] + size[0], used[1] + size[1]
        self.placed += 1

    def place(self, size: Size) -> None:
        best = self.best(size)
        if best:
            self.put(best[0], size)


def _by_profile(machines: list[Size], asks: list[Size]) -> tuple[int, int]:
    """How many it places, and how often on a machine that is not the fullest."""
    profile = made_with(None, DETACHED)["baremetal"]
    board, beside = Board([_node(number, size) for number, size in enumerate(machines)]), Plain(machines)
    strayed = 0
    for number, size in enumerate(asks):
        spec = VmTaskSpec(cpu=size[0], memory_mib=size[1])
        claim = VmTask(meta=Meta(name=f"t{number}", namespace="default"), spec=spec).claim
        ask = board.ask(claim)
        assert ask is not None
        node, best = decide(profile, ask, board.table.snapshot()).node, beside.best(size)
        strayed += (int(node[3:]) not in best) if node else bool(best)
        if node:
            board.put(claim.bound(node, at=1.0))
            beside.put(int(node[3:]), size)
    return beside.placed, strayed


def _node(number: int, size: Size) -> Node:
    status = NodeStatus(phase=NodePhase.READY, capacity=Resources(size[0] * 1000, size[1] * MIB), inventory="bench")
    return Node(meta=Meta(name=f"bm-{number}"), spec=NodeSpec(), status=status)
