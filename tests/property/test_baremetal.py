"""The profile `baremetal` is a best-fit: over random machines it never leaves a fuller one that has room."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.node import Node
from mandor.model.vm_task import MIB
from mandor.placement.board import Board
from tests.unit.placement.test_claims import machine, place, task

sizes = st.tuples(st.integers(1, 16), st.integers(1, 64))
machines = st.lists(st.tuples(sizes, st.integers(0, 100), st.integers(1, 6)), min_size=1, max_size=8)
Size = tuple[int, int]
"""Cores and GiB."""


class Plain:
    """Best-fit as one would write it down: of the machines with room, the fullest afterwards."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        self.room = {name: node.status.capacity for name, node in nodes.items()}
        self.quota = {name: int(node.status.facts["vm.quota"]) for name, node in nodes.items()}
        used = {name: node.status.occupied for name, node in nodes.items()}
        self.cpu = {name: each.cpu_milli for name, each in used.items() if each}
        self.memory = {name: each.memory_bytes for name, each in used.items() if each}
        # Where room is used, somebody is there, even if the inventory does not count him.
        self.vms = {
            name: each.machines or int(each.cpu_milli + each.memory_bytes > 0) for name, each in used.items() if each
        }

    def fullness(self, name: str, size: Size) -> int | None:
        """In whole percent, the mean of CPU and memory; None: no room."""
        cpu, memory = self.cpu[name] + size[0] * 1000, self.memory[name] + size[1] * 1024 * MIB
        room = self.room[name]
        if cpu > room.cpu_milli or memory > room.memory_bytes or self.vms[name] >= self.quota[name]:
            return None
        return (cpu * 100 // room.cpu_milli + memory * 100 // room.memory_bytes) // 2

    def best(self, size: Size) -> set[str]:
        found = {name: full for name in self.room if (full := self.fullness(name, size)) is not None}
        return {name for name, full in found.items() if full == max(found.values())}

    def put(self, name: str, size: Size) -> None:
        self.cpu[name] += size[0] * 1000
        self.memory[name] += size[1] * 1024 * MIB
        self.vms[name] += 1


@pytest.mark.req("S4-11")
@pytest.mark.req("S4-12")
@settings(deadline=None)
@given(machines, st.lists(sizes, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_every_choice_is_one_that_plain_best_fit_makes_so_it_never_places_fewer(
    wanted: list[tuple[Size, int, int]], asks: list[Size], chance: random.Random
) -> None:
    nodes = {}
    for index, ((cpu, memory), percent, quota) in enumerate(wanted):
        used = (cpu * percent // 100, memory * percent // 100, min(quota, percent // 30))
        nodes[f"m{index}"] = machine(f"m{index}", cpu=cpu, memory=memory, used=used, quota=quota)
    board, plain = Board(nodes.values()), Plain(nodes)
    chance.shuffle(asks)
    for index, size in enumerate(asks):
        best = plain.best(size)
        where = place(board, task(f"t{index}", cpu=size[0], memory_mib=size[1] * 1024))
        assert where in best if best else not where
        if where:
            plain.put(where, size)
