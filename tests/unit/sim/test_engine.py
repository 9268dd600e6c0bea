"""A simulated engine looks at its units only when something is different, and sees what it would see otherwise."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.engines.base import Launch, Unit, UnitPhase
from mandor.model.resources import Resources
from mandor.sim.engine import START_SECONDS, SimEngine, SimUnits
from mandor.sim.virtual import VirtualClock, run_virtual

LIMIT = 500 << 20
UNITS = [Unit(f"u{number}", "main", 1) for number in range(3)]
what = st.sampled_from(["start", "stop", "end", "remove", "more", "less", "wait"])
steps = st.lists(st.tuples(what, st.sampled_from(UNITS), st.sampled_from([0.5, 1.0, 4.0])), max_size=30)


async def _rehearse(plan: list[tuple[str, Unit, float]]) -> None:
    clock = VirtualClock()
    wants = 100
    units = SimUnits()
    engine = SimEngine(clock, units, lambda unit, launch: Resources(wants, wants << 20), images=True, own_options=False)
    for what, unit, seconds in plan:
        there = units.get(unit) is not None
        if what == "start":
            await engine.start(unit, Launch(name="web-0", memory_bytes=LIMIT))
        elif what == "stop":
            await engine.stop(unit, grace_seconds=10)
        elif what == "end" and there:
            engine.end(unit)
        elif what == "remove":
            await engine.remove(unit)
        elif what in {"more", "less"}:
            wants = wants * 2 if what == "more" else wants // 2 + 1
            engine.look_again()
        await asyncio.sleep(seconds)
        used, _ = engine.used()  # whoever wants too much dies of it
        now = clock.monotonic()
        plain = [each.observed(now) for each in units.all()]
        running = [each for each in plain if each.phase is UnitPhase.RUNNING]
        assert (used.cpu_milli, used.memory_bytes) == (len(running) * wants, len(running) * wants << 20)
        assert (await engine.usage()).keys() == {each.unit for each in running}
        assert list(await engine.list()) == plain


@given(steps)
def test_what_is_not_looked_at_again_is_what_it_was(plan: list[tuple[str, Unit, float]]) -> None:
    run_virtual(_rehearse(plan))


def test_the_usage_of_a_unit_is_computed_once_until_usage_rules_change() -> None:
    async def rehearse() -> list[Unit]:
        asked: list[Unit] = []

        def unit_usage(unit: Unit, launch: Launch) -> Resources:
            asked.append(unit)
            return Resources(100)

        engine = SimEngine(VirtualClock(), SimUnits(), unit_usage, images=True, own_options=False)
        for unit in UNITS:
            await engine.start(unit, Launch(name="web-0"))
            await asyncio.sleep(10)
            engine.used()
        engine.look_again()
        engine.used()
        return asked

    assert run_virtual(rehearse()) == [*UNITS, *UNITS]


def test_an_unchanged_instance_is_the_same_object() -> None:
    async def rehearse() -> None:
        engine = SimEngine(
            VirtualClock(), SimUnits(), lambda unit, launch: Resources(100), images=True, own_options=False
        )
        first, second, _ = UNITS
        await engine.start(first, Launch(name="web-0"))
        await asyncio.sleep(10)
        (before,) = await engine.list()
        await engine.start(second, Launch(name="web-1"))
        again, _ = await engine.list()
        assert again is before
        engine.end(first)
        ended, _ = await engine.list()
        assert ended.phase is UnitPhase.EXITED

    run_virtual(rehearse())


@pytest.mark.parametrize("late", [0.0, 1.0, 5.0])
def test_it_reports_when_a_unit_becomes_something_else_and_that_it_has(late: float) -> None:
    async def rehearse() -> tuple[float, UnitPhase]:
        clock = VirtualClock()
        engine = SimEngine(clock, SimUnits(), lambda unit, launch: Resources(100), images=True, own_options=False)
        events = engine.events()
        await engine.start(UNITS[0], Launch(name="web-0"))
        begun = clock.monotonic()
        await anext(events)
        await asyncio.sleep(late)
        await anext(events)
        (shown,) = await engine.list()
        return clock.monotonic() - begun, shown.phase

    took, phase = run_virtual(rehearse())
    assert took == pytest.approx(max(START_SECONDS, late), abs=1e-4)
    assert phase is UnitPhase.RUNNING
