"""A simulated machine is looked at again when something about it may be different, and not before."""

from __future__ import annotations

from mandor.lib.clock import ManualClock
from mandor.model.resources import Resources
from mandor.sim.machine import SimMachine

GIB = 1 << 30


def used(machine: SimMachine) -> int:
    return machine.usage().memory_bytes


async def test_what_it_uses_is_known_until_it_may_be_different() -> None:
    clock, asked, news = ManualClock(), list[float](), list[int]()

    def use() -> tuple[Resources, float]:
        asked.append(clock.monotonic())
        return Resources(memory_bytes=len(asked) * GIB), clock.monotonic() + 10

    machine = SimMachine(clock, Resources(4000, 8 * GIB), used=use, changed=lambda: news.append(1))
    first = machine.readings()
    assert (used(machine), machine.readings() is first, len(asked)) == (GIB, True, 1)
    await clock.advance(10)
    assert (used(machine), machine.readings() is first, len(asked)) == (2 * GIB, False, 2)
    machine.look_again()
    assert (used(machine), len(asked), len(news)) == (3 * GIB, 3, 3)


def test_a_new_size_and_usage_of_other_programs_are_visible_at_once() -> None:
    clock = ManualClock()
    nothing = Resources()
    machine = SimMachine(clock, Resources(4000, 8 * GIB), used=lambda: (nothing, float("inf")))
    memory = machine.readings()[0]
    assert (memory.available, memory.total) == (8 * GIB, 8 * GIB)
    machine.become(Resources(4000, 4 * GIB))
    machine.take(Resources(memory_bytes=GIB))
    memory = machine.readings()[0]
    assert (memory.available, memory.total) == (3 * GIB, 4 * GIB)
