"""The observer of an engine: neither too many `list` calls nor too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.agent.observer import FREE_SECONDS, POLL_SHARE, WAIT_MOST, IdlePolling, Observer
from mandor.engines.base import Engine, Launch, Observed, Unit
from mandor.engines.fake import FakeEngine
from mandor.errors import Unsupported
from mandor.lib.clock import ManualClock, settle

UNIT = Unit("u1", "main", 1)
OTHER = Unit("u2", "main", 1)


class Counting(FakeEngine):
    """Counts its `list` calls; can send no events."""

    silent = False

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self.lists = 0

    async def list(self) -> Sequence[Observed]:
        self.lists += 1
        return await super().list()

    async def events(self) -> AsyncIterator[None]:
        if self.silent:
            raise Unsupported("no events")
        async for tick in super().events():
            yield tick


class Silent(Counting):
    silent = True


class Generous(Counting):
    """Returns its own list object, which changes later."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock)
        self._given: list[Observed] = []

    async def list(self) -> Sequence[Observed]:
        self._given[:] = await super().list()
        return self._given


@asynccontextmanager
async def observing(engine: Engine, clock: ManualClock) -> AsyncIterator[tuple[Observer, list[set[str] | None]]]:
    told: list[set[str] | None] = []

    def note(uids: Iterable[str] | None) -> None:
        told.append(None if uids is None else set(uids))

    observer = Observer(engine, clock, note, poll_seconds=2.0)
    running = asyncio.ensure_future(observer.run())
    await settle()
    yield observer, told
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("kind", [Counting, Silent, Generous])
async def test_a_change_is_reported_with_the_uid_of_its_instance_only(kind: type[Counting]) -> None:
    clock = ManualClock()
    engine = kind(clock)
    await engine.start(UNIT, Launch(name="a"))
    await engine.start(OTHER, Launch(name="b"))
    async with observing(engine, clock) as (observer, told):
        assert told == [None]
        engine.end(OTHER)
        await clock.advance(3)
        assert {"u2"} in told
        assert all(each in ({"u2"}, set()) for each in told[1:])
        found = observer.of("u2")
        assert found is not None
        assert found[0].exit_code == 1


async def test_an_engine_with_events_is_listed_rarely() -> None:
    clock = ManualClock()
    engine = Counting(clock)
    async with observing(engine, clock):
        await engine.start(UNIT, Launch(name="a"))
        await clock.advance(5)
        before = engine.lists
        await clock.advance(300)
        assert engine.lists - before <= 11


async def test_an_engine_without_events_is_polled_while_units_run() -> None:
    clock = ManualClock()
    engine = Silent(clock)
    async with observing(engine, clock) as (observer, _):
        await engine.start(UNIT, Launch(name="a"))
        await observer.refresh()
        before = engine.lists
        await clock.advance(20)
        assert 8 <= engine.lists - before <= 12
        engine.end(UNIT)
        await clock.advance(3)
        before = engine.lists
        await clock.advance(300)
        assert engine.lists - before <= 11


async def test_concurrent_refreshes_share_one_list() -> None:
    clock = ManualClock()
    engine = Counting(clock)
    async with observing(engine, clock) as (observer, _):
        before = engine.lists
        await asyncio.gather(*(observer.refresh() for _ in range(100)))
        assert engine.lists - before <= 2


async def test_an_engine_that_answers_again_reports_a_change_of_all_instances() -> None:
    clock = ManualClock()
    engine = Counting(clock)
    await engine.start(UNIT, Launch(name="a"))
    async with observing(engine, clock) as (observer, told):
        engine.down()
        await clock.advance(1)
        assert observer.of("u1") is None
        assert not observer.answering
        before = engine.lists
        await clock.advance(300)
        assert engine.lists - before <= 30
        engine.up()
        await clock.advance(40)
        assert observer.of("u1")
        assert told[-1] is None or None in told[1:]


def test_a_few_short_calls_need_no_pause() -> None:
    polling = IdlePolling()
    for number in range(5):
        assert polling.wait(number * 0.01) == 0
        polling.spend(0.01, number * 0.01)


@given(st.lists(st.floats(0.001, 0.2), min_size=1, max_size=200))
def test_calls_take_no_more_than_their_share_of_time(durations: list[float]) -> None:
    polling, now, spent = IdlePolling(), 0.0, 0.0
    for seconds in durations:
        now += polling.wait(now) + seconds
        spent += seconds
        polling.spend(seconds, now)
    assert spent <= FREE_SECONDS + POLL_SHARE * now + max(durations) + 1e-6


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), max_size=50))
def test_a_pause_is_never_longer_than_the_maximum(spent: list[tuple[float, float]]) -> None:
    polling, now = IdlePolling(), 0.0
    for pause, seconds in spent:
        now += pause + seconds
        polling.spend(seconds, now)
        assert polling.wait(now) <= WAIT_MOST + 1e-6
