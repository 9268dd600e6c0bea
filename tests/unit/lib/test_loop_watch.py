"""The event loop is watched: how late it is, and who held it."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from types import SimpleNamespace

import pytest

from mandor.lib.loop_watch import LoopWatch


@pytest.fixture
async def watch(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LoopWatch]:
    """A watch that measures time of the processor, so that other processes on the machine make no step late."""
    clock = SimpleNamespace(monotonic=time.process_time, thread_time=time.thread_time)
    monkeypatch.setattr("mandor.lib.loop_watch.time", clock)
    found = LoopWatch(slow_seconds=0.04, tick_seconds=0.01)
    task = asyncio.create_task(found.run())
    yield found
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def compute_for_long() -> None:
    until = time.thread_time() + 0.2
    while time.thread_time() < until:
        sum(range(1000))


def found(watch: LoopWatch) -> float:
    return sum(count for (step,), count in watch.slow.items() if "compute_for_long" in step)


def text(watch: LoopWatch) -> str:
    return "\n".join(line for family in watch.families() for line in family.lines())


@pytest.mark.req("S0-19")
async def test_a_step_that_holds_the_loop_is_named_counted_and_reported_once(
    watch: LoopWatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="mandor.loop"):
        async with asyncio.timeout(60):
            while found(watch) < 2:
                await asyncio.sleep(0.03)
                compute_for_long()
    told = [record for record in caplog.records if "compute_for_long" in record.getMessage()]
    assert len(told) == 1, "the same place is told once a minute"
    assert any("compute_for_long" in line for line in told[0].facts["stack"])  # type: ignore[attr-defined]
    shown = text(watch)
    assert 'mandor_loop_slow_steps_total{step="' in shown
    assert "mandor_loop_lag_longest_seconds 0.0\n" not in shown


async def test_a_loop_that_only_waits_has_no_slow_step(watch: LoopWatch) -> None:
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert not watch.slow
    assert "mandor_loop_lag_seconds_count" in text(watch)
