"""FakeEngine follows its options and its test controls, on virtual time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Launch, Observed, Unit, UnitPhase
from mandor.engines.fake import FakeEngine, MemoryState
from mandor.errors import EngineDown, NotFound
from mandor.lib.clock import ManualClock, settle

UNIT = Unit("a1", "main", 0)


def launch(**options: Any) -> Launch:
    return Launch(name="web-0", command=("anything",), options=options)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(clock: ManualClock) -> FakeEngine:
    return FakeEngine(clock)


async def look(engine: FakeEngine, unit: Unit = UNIT) -> Observed:
    (found,) = [observed for observed in await engine.list() if observed.unit == unit]
    return found


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        ({}, 0, "Completed"),
        ({"exit_code": 3}, 3, "Error"),
        ({"signal": "SIGSEGV"}, 139, "Signalled"),
        ({"oom": True}, 137, "OOMKilled"),
        ({"vanish": True}, None, "Vanished"),
    ],
)
async def test_a_unit_ends_as_its_options_show(
    engine: FakeEngine, clock: ManualClock, options: dict[str, Any], code: int | None, reason: str
) -> None:
    begun = clock.now()
    await engine.start(UNIT, launch(after="1m", **options))
    await clock.advance(59)
    assert (await look(engine)).phase is UnitPhase.RUNNING
    await clock.advance(1)
    ended = await look(engine)
    assert (ended.phase, ended.exit_code, ended.reason) == (UnitPhase.EXITED, code, reason)
    assert (ended.started_at, ended.finished_at) == (begun, begun + 60)


async def test_without_a_time_it_runs_until_it_is_stopped(engine: FakeEngine, clock: ManualClock) -> None:
    await engine.start(UNIT, launch())
    await clock.advance(1e6)
    assert (await look(engine)).phase is UnitPhase.RUNNING
    await engine.stop(UNIT, grace_seconds=10)
    assert ((await look(engine)).exit_code, (await look(engine)).message) == (143, "SIGTERM")


async def test_it_starts_slowly(engine: FakeEngine, clock: ManualClock) -> None:
    await engine.start(UNIT, launch(start_delay="5s", after="1s"))
    assert (await look(engine)).phase is UnitPhase.STARTING
    await clock.advance(5)
    assert (await look(engine)).phase is UnitPhase.RUNNING
    await clock.advance(1)
    assert (await look(engine)).phase is UnitPhase.EXITED


@pytest.mark.parametrize("told", [True, "no such image"])
async def test_it_cannot_start(engine: FakeEngine, told: bool | str) -> None:
    await engine.start(UNIT, launch(fail_start=told))
    ended = await look(engine)
    assert (ended.reason, ended.exit_code, ended.started_at) == ("StartFailed", None, 0.0)
    assert told is True or ended.message == told


async def test_unknown_options_fail_the_start(engine: FakeEngine) -> None:
    await engine.start(UNIT, launch(afterr=3))
    ended = await look(engine)
    assert ended.reason == "StartFailed"
    assert "afterr" in ended.message
    await engine.stop(UNIT, grace_seconds=1)
    await engine.remove(UNIT)
    assert await engine.list() == []


async def test_the_first_orders_to_start_find_the_engine_down(engine: FakeEngine) -> None:
    for _ in range(2):
        with pytest.raises(EngineDown):
            await engine.start(UNIT, launch(down_starts=2))
    assert await engine.list() == []
    await engine.start(UNIT, launch(down_starts=2))
    assert len(engine.starts) == 1


async def test_an_attempt_that_is_good_at_last_runs_on(engine: FakeEngine, clock: ManualClock) -> None:
    for attempt in range(4):
        await engine.start(Unit("a1", "main", attempt), launch(after="1s", exit_code=1, good_attempt=2))
    await clock.advance(60)
    assert [(await look(engine, Unit("a1", "main", n))).phase == "exited" for n in range(4)] == [
        True,
        True,
        False,
        False,
    ]


async def test_random_ends_depend_on_the_seed(clock: ManualClock) -> None:
    async def failures(seed: int) -> list[bool]:
        engine = FakeEngine(clock, seed)
        units = [Unit(f"u{n}", "main", 0) for n in range(200)]
        for unit in units:
            await engine.start(unit, launch(after="0s", exit_code=1, chance=0.3))
        return [(await look(engine, unit)).phase is UnitPhase.EXITED for unit in units]

    first = await failures(1)
    assert first == await failures(1)
    assert first != await failures(2)
    assert 30 <= sum(first) <= 90


async def test_a_stop_that_is_ignored_ends_with_the_grace(engine: FakeEngine, clock: ManualClock) -> None:
    await engine.start(UNIT, launch(ignore_stop=True))
    stopping = asyncio.create_task(engine.stop(UNIT, grace_seconds=30))
    await clock.advance(29)
    assert not stopping.done()
    await clock.advance(1)
    await stopping
    assert (await look(engine)).exit_code == 137


@pytest.mark.parametrize(("grace", "code"), [(30, 143), (5, 137)])
async def test_a_stop_may_take_as_long_as_the_grace(
    engine: FakeEngine, clock: ManualClock, grace: float, code: int
) -> None:
    await engine.start(UNIT, launch(stop_delay="10s"))
    stopping = asyncio.create_task(engine.stop(UNIT, grace_seconds=grace))
    await clock.advance(10)
    await stopping
    assert (await look(engine)).exit_code == code


async def test_a_second_stop_with_a_shorter_grace_shortens_the_first(engine: FakeEngine, clock: ManualClock) -> None:
    await engine.start(UNIT, launch(ignore_stop=True))
    stops = [asyncio.create_task(engine.stop(UNIT, grace_seconds=grace)) for grace in (600, 5)]
    await clock.advance(5)
    assert (await look(engine)).phase is UnitPhase.EXITED
    await clock.advance(600)
    await asyncio.gather(*stops)


async def test_an_order_that_hangs_never_returns(engine: FakeEngine, clock: ManualClock) -> None:
    await engine.start(UNIT, launch(hang_stop=True))
    other = Unit("b2", "main", 0)
    orders = [
        asyncio.create_task(engine.stop(UNIT, grace_seconds=1)),
        asyncio.create_task(engine.start(other, launch(hang_start=True))),
    ]
    await clock.advance(1e6)
    assert not any(order.done() for order in orders)
    assert [(await look(engine)).phase, len(await engine.list())] == [UnitPhase.RUNNING, 1]
    for order in orders:
        order.cancel()
    await asyncio.gather(*orders, return_exceptions=True)


async def test_each_order_is_slow(engine: FakeEngine, clock: ManualClock) -> None:
    starting = asyncio.create_task(engine.start(UNIT, launch(slow="3s")))
    await clock.advance(2)
    assert await engine.list() == []
    await clock.advance(1)
    await starting
    assert len(await engine.list()) == 1


async def test_down_and_up_again(engine: FakeEngine) -> None:
    await engine.start(UNIT, launch())
    engine.down("socket missing")
    for order in (engine.probe(), engine.list(), engine.start(UNIT, launch()), engine.remove(UNIT), engine.usage()):
        with pytest.raises(EngineDown, match="socket missing"):
            await order
    engine.up()
    assert (await look(engine)).phase is UnitPhase.RUNNING


async def test_a_verb_hangs_until_it_is_released(engine: FakeEngine) -> None:
    engine.hang("list")
    listing = asyncio.create_task(engine.list())
    await settle()
    assert not listing.done()
    engine.release("list")
    assert await listing == []


async def test_a_test_can_end_a_unit_and_let_it_vanish(engine: FakeEngine) -> None:
    units = [Unit(f"u{n}", "main", 0) for n in range(3)]
    for unit in units:
        await engine.start(unit, launch())
    engine.end(units[0], 4)
    engine.vanish(units[1])
    engine.lose(units[2])
    assert [(o.unit, o.exit_code, o.reason) for o in await engine.list()] == [
        (units[0], 4, "Error"),
        (units[1], None, "Vanished"),
    ]
    with pytest.raises(NotFound):
        engine.end(units[2])


async def test_an_end_during_a_blocked_event_loop_is_reported() -> None:
    """A subscriber that listed just before the end and waits for an event after it is notified."""

    class Busy(ManualClock):
        def hold(self, seconds: float) -> None:
            self._time += seconds  # no timer could fire

    clock = Busy()
    engine = FakeEngine(clock)
    events = engine.events()
    await engine.start(UNIT, launch(after="1m"))
    await anext(events)
    clock.hold(60)
    async with asyncio.timeout(10):
        await anext(events)
    assert (await look(engine)).phase is UnitPhase.EXITED


async def test_events_are_sent_for_verbs_and_for_changes_by_themselves(engine: FakeEngine, clock: ManualClock) -> None:
    seen: list[str] = []

    async def listen() -> None:
        async for _ in engine.events():
            seen.append((await look(engine)).phase)  # noqa: PERF401 (others read it meanwhile)

    listening = asyncio.create_task(listen())
    await settle()
    await engine.start(UNIT, launch(start_delay="5s", after="5s"))
    await clock.advance(20)
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
    assert seen == ["starting", "running", "exited"]


async def test_starts_are_counted_for_ever(clock: ManualClock) -> None:
    state = MemoryState()
    first, second = FakeEngine(clock, state=state), FakeEngine(clock, state=state)
    await asyncio.gather(*(engine.start(UNIT, launch()) for engine in (first, second, first)))
    assert [start.unit for start in second.starts] == [UNIT]
    await first.remove(UNIT)
    await second.start(UNIT, launch())
    assert [start.unit for start in first.starts] == [UNIT, UNIT]


async def test_the_launch_of_a_unit_can_be_read(tmp_path: Path) -> None:
    engine = FakeEngine(directory=tmp_path)
    wanted = Launch(name="web-0", image="nginx", env={"A": "1"}, memory_bytes=5, options={"after": "1h"})
    await engine.start(UNIT, wanted)
    again = FakeEngine(directory=tmp_path)
    found = again.launch(UNIT)
    assert (found.name, found.image, dict(found.env), found.memory_bytes) == ("web-0", "nginx", {"A": "1"}, 5)
    assert dict(found.options) == {"after": "1h"}
    await engine.close()
    await again.close()


KILLED = """
import asyncio, sys
from pathlib import Path
from mandor.engines.base import Launch, Unit
from mandor.engines.fake import FakeEngine

async def main():
    engine = FakeEngine(directory=Path(sys.argv[1]))
    print("ready", flush=True)
    while True:
        for number in range(500):
            await engine.start(Unit(f"u{number}", "main", 0), Launch(name="x", command=("x",)))
            await asyncio.sleep(0)

asyncio.run(main())
"""


@pytest.mark.req("S0-27")
async def test_the_state_survives_an_agent_that_is_killed_at_any_moment(tmp_path: Path) -> None:
    for pause in (0.0, 0.01, 0.03):
        agent = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert agent.stdout is not None
        assert agent.stdout.readline() == "ready\n"
        await asyncio.sleep(pause)
        os.kill(agent.pid, signal.SIGKILL)
        agent.wait()
        agent.stdout.close()
    engine = FakeEngine(directory=tmp_path)
    counts = Counter(start.unit for start in engine.starts)
    assert set(counts.values()) <= {1}
    assert {observed.unit for observed in await engine.list()} == set(counts)
    await engine.close()


class SetClock(ManualClock):
    """A clock whose wall time can be set."""

    ahead = 0.0

    def now(self) -> float:
        return self.monotonic() + self.ahead


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
async def test_a_change_of_the_wall_clock_starts_and_ends_nothing(jump: float) -> None:
    clock = SetClock()
    engine = FakeEngine(clock)
    began = clock.now()
    await engine.start(UNIT, launch(start_delay="5s", after="60s"))
    clock.ahead = jump
    assert (await look(engine)).phase is UnitPhase.STARTING
    await clock.advance(5)
    seen = await look(engine)
    assert (seen.phase, seen.started_at) == (UnitPhase.RUNNING, began + 5)
    await clock.advance(60)
    assert (await look(engine)).phase is UnitPhase.EXITED


async def test_units_of_an_earlier_boot_are_gone(tmp_path: Path) -> None:
    engine = FakeEngine(ManualClock(1000.0), directory=tmp_path)
    await engine.start(UNIT, launch())
    await engine.close()
    rebooted = FakeEngine(ManualClock(10.0), directory=tmp_path)
    seen = await look(rebooted)
    assert (seen.phase, seen.reason) == (UnitPhase.EXITED, "Vanished")
    await rebooted.close()
