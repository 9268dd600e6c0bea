"""A simulated machine is measured only when something on it changes, and tells what it would tell otherwise."""

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from mandor.agent.usage import InstanceMeter
from mandor.engines.base import Launch, Unit
from mandor.model.resources import Resources
from mandor.model.usage import InstanceUsage
from mandor.sim.engine import SimEngine, SimUnits
from mandor.sim.meter import SteadyMeter
from mandor.sim.virtual import VirtualClock, run_virtual

NAMES = {f"u{number}": f"default/web-{number}" for number in range(3)}
steps = st.lists(st.sampled_from(["wait", "start", "more", "less", "down", "up", "ready"]), max_size=30)


async def _told(plan: list[str], *, steady: bool) -> list[dict[str, InstanceUsage]]:
    clock = VirtualClock()
    wants, ready, started = 100, frozenset[str](), 0
    engine = SimEngine(
        clock, SimUnits(), lambda unit, launch: Resources(wants, wants << 20), images=True, own_options=False
    )
    plain = InstanceMeter(clock)
    meter = SteadyMeter(clock, lambda: object() if engine.is_down else engine.used()) if steady else plain
    found = []
    for step in plan:
        if step == "start" and started < len(NAMES) and not engine.is_down:
            await engine.start(Unit(f"u{started}", "main", 1), Launch(name="web-0/main", namespace="default"))
            started += 1
        elif step in {"more", "less"}:
            wants = wants * 2 if step == "more" else wants // 2 + 1
            engine.look_again()
        elif step in {"down", "up"}:
            engine.down() if step == "down" else engine.up()
        elif step == "ready":
            ready = frozenset(NAMES) - ready
        await asyncio.sleep(10)
        engine.used()
        found.append(await meter.read([engine], NAMES, ready))
    return found


@given(steps)
def test_what_is_not_measured_again_is_what_it_was(plan: list[str]) -> None:
    assert run_virtual(_told(plan, steady=True)) == run_virtual(_told(plan, steady=False))
