"""The watchdog interrupts calls that exceed their budget and nothing else, and measures all plugins."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from mandor.placement.framework.points import PreEnqueuePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.scheduler.watchdog import SAMPLED, Watchdog


class Any(PreEnqueuePlugin):
    name = "Any"

    def pre_enqueue(self, request: PlacementRequest) -> str | None:
        return None


PLUGIN = Any()


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    with Watchdog(cpu_seconds=0.1, wall_seconds=0.5) as made:
        yield made


def loop_for_ever() -> None:
    while True:
        pass


def loop_and_catch() -> None:
    while True:
        try:
            loop_for_ever()
        except Exception:
            continue


def sleep_for_ever() -> None:
    while True:
        time.sleep(0.01)


@pytest.mark.parametrize("work", [loop_for_ever, loop_and_catch, sleep_for_ever])
def test_a_call_that_never_ends_is_broken_off(watchdog: Watchdog, work: object) -> None:
    assert callable(work)
    with pytest.raises(PluginFault, match="the plugin Any exceeded its time limit and was interrupted"):
        watchdog.call(PLUGIN, work)
    assert watchdog.spent["Queue", "Any"].calls == 1
    assert watchdog.spent["Queue", "Any"].seconds > 0.05


def test_one_that_swallows_everything_is_broken_off_again(watchdog: Watchdog) -> None:
    left = 3

    def stubborn() -> None:
        nonlocal left
        while left:
            try:
                loop_for_ever()
            except BaseException:
                left -= 1
        loop_for_ever()

    with pytest.raises(PluginFault):
        watchdog.call(PLUGIN, stubborn)
    assert left == 0


def test_many_short_calls_are_not_one_long_one(watchdog: Watchdog) -> None:
    def several() -> int:
        for _ in range(30):
            watchdog.begin("Any", "Filter")
            until = time.thread_time() + 0.01
            while time.thread_time() < until:
                pass
        watchdog.end()
        return 7

    assert watchdog.run(several) == 7
    assert watchdog.spent["Filter", "Any"].calls == 30


def test_nothing_is_thrown_after_the_call(watchdog: Watchdog) -> None:
    """Calls that end about when their budget does, again and again: what is thrown too late is taken back."""
    faults = 0
    for _ in range(15):
        try:
            watchdog.call(PLUGIN, lambda: _busy(0.11))
        except PluginFault:
            faults += 1
        _busy(0.02)  # outside: would end the test
    assert faults <= 15
    assert watchdog.call(PLUGIN, lambda: 3) == 3


def _busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_an_error_is_the_plugins_fault(watchdog: Watchdog) -> None:
    with pytest.raises(PluginFault, match="the plugin Any raised ZeroDivisionError"):
        watchdog.call(PLUGIN, lambda: 1 // 0)


async def test_an_asynchronous_call_is_watched_in_its_steps_and_not_in_its_waits(watchdog: Watchdog) -> None:
    async def patient() -> str:
        await asyncio.sleep(0.8)
        return "done"

    async def loops() -> None:
        await asyncio.sleep(0)
        loop_for_ever()

    async def raises() -> None:
        await asyncio.sleep(0)
        raise OSError("no volume")

    assert await watchdog.follow(PLUGIN, patient()) == "done"
    with pytest.raises(PluginFault, match="exceeded its time limit"):
        await watchdog.follow(PLUGIN, loops())
    with pytest.raises(PluginFault, match="raised OSError: no volume"):
        await watchdog.follow(PLUGIN, raises())


async def test_an_asynchronous_call_can_be_cancelled_and_cleans_up(watchdog: Watchdog) -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    task = asyncio.ensure_future(watchdog.follow(PLUGIN, waits()))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["cleaned up"]


def test_plugins_of_others_are_always_measured_and_our_own_now_and_then(watchdog: Watchdog) -> None:
    def decision() -> None:
        watchdog.begin("NodeResourcesFit", "Filter")
        watchdog.begin("Theirs", "Score")
        watchdog.end()

    for _ in range(2 * SAMPLED):
        watchdog.run(decision)
    assert watchdog.spent["Score", "Theirs"].calls == 2 * SAMPLED
    assert watchdog.spent["Filter", "NodeResourcesFit"].calls == 2
