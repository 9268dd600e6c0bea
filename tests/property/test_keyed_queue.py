"""The queue against a model: nothing is lost, nothing is handled twice at a time."""

import asyncio
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.lib.clock import ManualClock
from mandor.lib.keyed_queue import KeyedQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 4), st.just(0.0)),
        st.tuples(st.just("later"), st.integers(0, 4), st.floats(0, 20)),
        st.tuples(st.just("turn"), st.just(0), st.floats(0, 10)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(1, 3))
@settings(deadline=None)
def test_every_added_key_is_handled_afterwards_and_by_one_worker_at_a_time(
    steps: list[tuple[str, int, float]], workers: int
) -> None:
    asyncio.run(_play(steps, workers))


async def _play(steps: list[tuple[str, int, float]], workers: int) -> None:
    clock = ManualClock(0.0)
    queue: KeyedQueue[int] = KeyedQueue(clock)
    busy: set[int] = set()
    handled: Counter[int] = Counter()
    began: dict[int, float] = {}

    async def work() -> None:
        while True:
            key = await queue.get()
            assert key not in busy
            busy.add(key)
            began[key] = clock.monotonic()
            await clock.sleep(1)
            busy.discard(key)
            handled[key] += 1
            queue.done(key)

    tasks = [asyncio.create_task(work()) for _ in range(workers)]
    asked: dict[int, float] = {}
    adds: Counter[int] = Counter()
    for verb, key, amount in steps:
        if verb == "add":
            queue.add(key)
        elif verb == "later":
            queue.add_after(key, amount)
        else:
            await clock.advance(amount)
            continue
        adds[key] += 1
        asked[key] = clock.monotonic()
    await clock.advance(200)
    assert queue.idle
    for key, at in asked.items():
        assert began[key] >= at, "asked for after it was last begun"
        assert 1 <= handled[key] <= adds[key] + 1
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in results), results
