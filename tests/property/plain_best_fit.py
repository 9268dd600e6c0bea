"""The best-fit of virtual machines onto bare metal as its document has it: pre-filter, filter, score, the best one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple


class Size(NamedTuple):
    cpu: int
    memory: int


class Weights(NamedTuple):
    cpu: int = 1
    memory: int = 1
    machines: int = 1


EQUAL = Weights()


@dataclass(frozen=True)
class Machine:
    name: str
    cpu: int
    memory: int
    pool: str = "default"
    quota: int | None = None
    used_cpu: int = 0
    used_memory: int = 0
    vms: int = 0

    def with_one_more(self, size: Size, sign: int = 1) -> Machine:
        used_cpu, used_memory = self.used_cpu + sign * size.cpu, self.used_memory + sign * size.memory
        return replace(self, used_cpu=used_cpu, used_memory=used_memory, vms=self.vms + sign)


def best_fit(machines: Iterable[Machine], size: Size, pool: str, weights: Weights = EQUAL) -> Machine | None:
    """`max` takes the first of several."""
    left = pre_filter(machines, pool)
    left = filter_nodes(left, size)
    return max(left, key=lambda each: score(each, weights), default=None)


def pre_filter(machines: Iterable[Machine], pool: str) -> list[Machine]:
    return [each for each in machines if each.pool == pool and (each.quota is None or each.vms < each.quota)]


def filter_nodes(machines: Iterable[Machine], size: Size) -> list[Machine]:
    """By what is free, and not by how large a machine is."""
    return [
        each
        for each in machines
        if each.cpu - each.used_cpu >= size.cpu and each.memory - each.used_memory >= size.memory
    ]


def score(machine: Machine, weights: Weights) -> Fraction:
    """Return the used shares of CPU, memory and quota."""
    quota = Fraction(machine.vms, machine.quota) if machine.quota else Fraction(0)
    return (
        Fraction(machine.used_cpu, machine.cpu) * weights.cpu
        + Fraction(machine.used_memory, machine.memory) * weights.memory
        + quota * weights.machines
    )


class Fleet:
    """Machines by name, as requests fill them."""

    def __init__(self, machines: Iterable[Machine], weights: Weights = EQUAL) -> None:
        self._machines = {each.name: each for each in sorted(machines, key=lambda each: each.name)}
        self._weights = weights

    def place(self, size: Size, pool: str = "default") -> str:
        """Return the chosen node; empty: none."""
        best = best_fit(self._machines.values(), size, pool, self._weights)
        if best is None:
            return ""
        self._machines[best.name] = best.with_one_more(size)
        return best.name

    def give_back(self, name: str, size: Size) -> None:
        self._machines[name] = self._machines[name].with_one_more(size, -1)
