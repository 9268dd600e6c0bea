"""One key, one worker at a time, never queued twice."""

import asyncio

from mandor.lib.clock import ManualClock, settle
from mandor.lib.keyed_queue import KeyedQueue


async def taken(queue: KeyedQueue[str]) -> str | None:
    """The next key, or None if there is none now."""
    task = asyncio.ensure_future(queue.get())
    await settle()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return None


async def test_a_key_added_twice_is_handled_once() -> None:
    queue: KeyedQueue[str] = KeyedQueue(ManualClock())
    queue.add("a")
    queue.add("a")
    queue.add("b")
    assert [await taken(queue), await taken(queue), await taken(queue)] == ["a", "b", None]


async def test_a_key_in_hand_is_not_given_to_another_worker() -> None:
    queue: KeyedQueue[str] = KeyedQueue(ManualClock())
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add("a")
    assert await taken(queue) is None
    queue.done("a")
    assert await taken(queue) == "a"
    queue.done("a")
    assert await taken(queue) is None
    assert queue.idle


async def test_a_key_for_later_comes_when_its_time_has_come() -> None:
    clock = ManualClock()
    queue: KeyedQueue[str] = KeyedQueue(clock)
    queue.add_after("a", 10)
    assert await taken(queue) is None
    waiting = asyncio.ensure_future(queue.get())
    await clock.advance(9.9)
    assert not waiting.done()
    await clock.advance(0.2)
    assert await waiting == "a"


async def test_the_earliest_of_several_pauses_counts_and_only_once() -> None:
    clock = ManualClock()
    queue: KeyedQueue[str] = KeyedQueue(clock)
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    await clock.advance(6)
    assert await taken(queue) == "a"
    queue.done("a")
    await clock.advance(30)
    assert await taken(queue) is None


async def test_a_plain_add_wins_over_a_pause() -> None:
    clock = ManualClock()
    queue: KeyedQueue[str] = KeyedQueue(clock)
    queue.add_after("a", 10)
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a")
    await clock.advance(20)
    assert await taken(queue) is None


async def test_a_pause_that_ends_while_the_key_is_in_hand_queues_it_again() -> None:
    clock = ManualClock()
    queue: KeyedQueue[str] = KeyedQueue(clock)
    queue.add("a")
    assert await taken(queue) == "a"
    queue.add_after("a", 1)
    await clock.advance(2)
    assert await taken(queue) is None
    queue.done("a")
    assert await taken(queue) == "a"


async def test_a_waiting_worker_learns_of_a_new_key() -> None:
    queue: KeyedQueue[str] = KeyedQueue(ManualClock())
    waiting = asyncio.ensure_future(queue.get())
    await settle()
    queue.add("a")
    assert await asyncio.wait_for(waiting, 10) == "a"


async def test_several_waiting_workers_share_a_burst() -> None:
    queue: KeyedQueue[str] = KeyedQueue(ManualClock())
    workers = [asyncio.ensure_future(queue.get()) for _ in range(4)]
    await settle()
    for key in "abcd":
        queue.add(key)
    assert sorted(await asyncio.wait_for(asyncio.gather(*workers), 10)) == list("abcd")


async def test_workers_that_wait_for_the_same_hour_all_get_their_key() -> None:
    clock = ManualClock()
    queue: KeyedQueue[str] = KeyedQueue(clock)
    for key in "abc":
        queue.add_after(key, 5)
    workers = [asyncio.ensure_future(queue.get()) for _ in range(3)]
    await clock.advance(6)
    assert sorted(await asyncio.wait_for(asyncio.gather(*workers), 10)) == list("abc")


async def test_taking_several_keys_marks_all_in_progress() -> None:
    queue: KeyedQueue[str] = KeyedQueue(ManualClock())
    for key in "abc":
        queue.add(key)
    assert [await taken(queue), *queue.more(1)] == ["a", "b"]
    queue.add("b")
    assert queue.more(9) == ["c"]
    queue.done("b")
    assert queue.more(9) == ["b"]
