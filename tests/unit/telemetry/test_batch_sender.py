"""The sender of batches, on a clock that the test turns: retries, drops, stops, and the bounds of the queue."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.errors import Invalid, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import ManualClock, settle
from mandor.telemetry.batch_queue import BatchQueue
from mandor.telemetry.batch_sender import Attempt, BatchSender, RetryPolicy, Source, Verdict

Batch = Sequence[int]
BACKOFF = Backoff(1, 8)


def make_queue(clock: ManualClock, size: Callable[[int], int] = lambda item: 1, **limits: float) -> BatchQueue[int]:
    bounds = {"most_items": 100, "most_bytes": 1000, "batch_items": 3, "batch_bytes": 1000, "linger_seconds": 5}
    return BatchQueue(clock, size, **(bounds | limits))  # type: ignore[arg-type]


@dataclass
class Receiver:
    """Accepts batches, or raises the next of `errors` (None: accept)."""

    errors: list[Exception | None] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    attempts: list[Attempt[Batch]] = field(default_factory=list)
    hang: bool = False

    async def send(self, batch: Batch) -> str:
        if self.hang:
            await asyncio.Event().wait()
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error
        self.accepted += batch
        self.batches.append(list(batch))
        return "ok"

    @property
    def dropped(self) -> list[int]:
        return [item for each in self.attempts if each.verdict is Verdict.DROP for item in each.batch or ()]


def make_sender(clock: ManualClock, receiver: Receiver, policy: RetryPolicy | None = None) -> BatchSender[Batch]:
    return BatchSender(clock, receiver.send, policy or RetryPolicy(BACKOFF), receiver.attempts.append)


@asynccontextmanager
async def running(sender: BatchSender[Batch], source: Source[Batch]) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(sender.run(source))
    try:
        await settle()
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def test_a_full_batch_is_sent_at_once_and_the_rest_after_a_moment() -> None:
    clock, receiver = ManualClock(), Receiver()
    queue = make_queue(clock)
    async with running(make_sender(clock, receiver), queue):
        for item in range(7):
            queue.put(item)
        await settle()
        assert receiver.batches == [[0, 1, 2], [3, 4, 5]]
        await clock.advance(4.9)
        assert len(receiver.batches) == 2
        await clock.advance(0.2)
        assert receiver.batches[2:] == [[6]]


async def test_a_batch_ends_at_its_limit_of_bytes_and_has_at_least_one_item() -> None:
    clock, receiver = ManualClock(), Receiver()
    queue = make_queue(clock, lambda item: item, batch_bytes=10)
    for item in (4, 5, 6, 30, 1):
        queue.put(item)
    async with running(make_sender(clock, receiver), queue):
        await clock.advance(10)
    assert receiver.batches == [[4, 5], [6], [30], [1]]


async def test_a_full_queue_drops_its_oldest_items_but_not_those_that_are_being_sent() -> None:
    clock, receiver = ManualClock(), Receiver(hang=True)
    queue = make_queue(clock, most_items=6)
    dropped = [queue.put(item) for item in range(3)]
    async with running(make_sender(clock, receiver), queue):
        dropped += [queue.put(item) for item in range(3, 8)]
    assert dropped == [0, 0, 0, 0, 0, 0, 1, 1]
    assert await queue.next() == [0, 1, 2]
    assert queue.take(10) == [5, 6, 7]


async def test_a_batch_waits_for_a_receiver_that_is_down_with_growing_pauses() -> None:
    clock, receiver = ManualClock(), Receiver([Unavailable("down"), OSError("reset"), Unavailable("down")])
    queue = make_queue(clock)
    times: list[float] = []
    sender = BatchSender(clock, receiver.send, RetryPolicy(BACKOFF), lambda attempt: times.append(clock.now()))
    begin = clock.now()
    async with running(sender, queue):
        for item in range(6):
            queue.put(item)
        await clock.advance(20)
    assert [each - begin for each in times] == [0, 1, 3, 7, 7]
    assert receiver.accepted == list(range(6))


async def test_a_refused_batch_is_dropped_after_its_refusals_and_the_next_one_is_sent() -> None:
    clock, receiver = ManualClock(), Receiver([Invalid("no"), Unavailable("down"), Invalid("no"), None])
    queue = make_queue(clock)
    async with running(make_sender(clock, receiver, RetryPolicy(BACKOFF, refusals=2)), queue):
        for item in range(6):
            queue.put(item)
        await clock.advance(60)
    assert (receiver.dropped, receiver.accepted) == ([0, 1, 2], [3, 4, 5])
    assert [each.verdict for each in receiver.attempts] == [Verdict.RETRY, Verdict.RETRY, Verdict.DROP, None]


async def test_a_batch_is_dropped_after_its_tries() -> None:
    clock, receiver = ManualClock(), Receiver([Unavailable("down")] * 3)
    queue = make_queue(clock)
    async with running(make_sender(clock, receiver, RetryPolicy(BACKOFF, tries=3)), queue):
        for item in range(6):
            queue.put(item)
        await clock.advance(60)
    assert (receiver.dropped, receiver.accepted) == ([0, 1, 2], [3, 4, 5])


async def test_a_batch_older_than_the_patience_is_dropped_while_the_receiver_is_down() -> None:
    clock, receiver = ManualClock(), Receiver([Unavailable("down")])
    sender = make_sender(clock, receiver, RetryPolicy(BACKOFF, patience_seconds=60))
    await sender.deliver([1], since=clock.now() - 61)
    await sender.deliver([2], since=clock.now() - 61)
    assert (receiver.dropped, receiver.accepted) == ([1], [2])


async def test_an_unexpected_error_ends_the_sender_unless_the_policy_drops_the_batch() -> None:
    clock = ManualClock()
    with pytest.raises(ZeroDivisionError):
        await make_sender(clock, Receiver([ZeroDivisionError()])).deliver([1])
    receiver = Receiver([ZeroDivisionError()])
    await make_sender(clock, receiver, RetryPolicy(BACKOFF, unexpected=Verdict.DROP)).deliver([1])
    assert receiver.dropped == [1]


async def test_a_receiver_can_ask_for_a_longer_pause_up_to_ten_minutes() -> None:
    clock = ManualClock()
    receiver = Receiver([Unavailable("busy", retry_seconds=50.0), Unavailable("busy", retry_seconds=1e9)])
    task = asyncio.ensure_future(make_sender(clock, receiver).deliver([1]))
    await clock.advance(49)
    assert len(receiver.attempts) == 1
    await clock.advance(2)
    assert len(receiver.attempts) == 2
    await clock.advance(600)
    await task
    assert receiver.accepted == [1]


async def test_a_changed_receiver_is_tried_at_once() -> None:
    clock, receiver = ManualClock(), Receiver([Unavailable("down")] * 4)
    sender = make_sender(clock, receiver)
    task = asyncio.ensure_future(sender.deliver([1]))
    await clock.advance(7)
    assert len(receiver.attempts) == 4
    sender.retry_now()
    await settle()
    assert receiver.accepted == [1]
    await task


class FailingSource:
    """A durable source whose disk or store fails for a while."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors, self.left = list(errors), [[1], [2]]

    def _fail(self) -> None:
        if self.errors and (error := self.errors.pop(0)) is not None:
            raise error

    async def next(self) -> Batch | None:
        self._fail()
        return self.left[0] if self.left else None

    async def done(self, batch: Batch) -> None:
        self._fail()
        self.left.remove(list(batch))


async def test_a_source_that_fails_is_asked_again_and_its_batches_are_sent_at_least_once() -> None:
    clock, receiver = ManualClock(), Receiver()
    source = FailingSource(Unavailable("no store"), None, OSError("no disk"))
    async with running(make_sender(clock, receiver), source) as task:
        await clock.advance(10)
        assert task.done()
    assert receiver.accepted == [1, 1, 2]
    assert [each.batch for each in receiver.attempts if each.error is not None] == [None, None]


async def test_the_rest_is_sent_at_the_end_and_the_batch_that_was_being_sent_too() -> None:
    clock, receiver = ManualClock(), Receiver(hang=True)
    queue = make_queue(clock)
    sender = make_sender(clock, receiver)
    for item in range(7):
        queue.put(item)
    async with running(sender, queue):
        await settle()
    receiver.hang = False
    queue.close()
    await sender.drain(queue, 60)
    assert receiver.accepted == list(range(7))
    assert not len(queue)


async def test_the_end_does_not_wait_for_a_receiver_that_hangs_or_is_down() -> None:
    clock = ManualClock()
    for receiver in (Receiver(hang=True), Receiver([Unavailable("down")])):
        queue = make_queue(clock)
        queue.put(1)
        queue.close()
        await make_sender(clock, receiver).drain(queue, 0.01)
        assert receiver.accepted == []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 30)),
        st.tuples(st.just("wait"), st.integers(1, 20)),
        st.tuples(st.just("answer"), st.sampled_from(["down", "refused", "unexpected"])),
    ),
    max_size=60,
)
ERRORS = {"down": Unavailable("down"), "refused": Invalid("no"), "unexpected": ValueError("odd")}


@settings(max_examples=150, deadline=None)
@given(steps=steps, most_items=st.integers(1, 8), most_bytes=st.integers(20, 80), tries=st.none() | st.integers(1, 3))
def test_each_item_is_sent_in_order_or_counted_as_dropped_and_the_queue_keeps_its_bounds(
    steps: list[tuple[str, object]], most_items: int, most_bytes: int, tries: int | None
) -> None:
    async def play() -> None:
        clock, receiver = ManualClock(), Receiver()
        sizes: list[int] = []
        queue = make_queue(
            clock, lambda item: sizes[item], most_items=most_items, most_bytes=most_bytes, batch_bytes=25
        )
        policy = RetryPolicy(BACKOFF, tries=tries, unexpected=Verdict.DROP)
        without_room = 0
        async with running(make_sender(clock, receiver, policy), queue):
            for kind, value in steps:
                if kind == "put":
                    sizes.append(int(str(value)))
                    without_room += queue.put(len(sizes) - 1)
                elif kind == "wait":
                    await clock.advance(int(str(value)))
                else:
                    receiver.errors.append(ERRORS[str(value)])
                assert len(queue) <= most_items
                assert queue.bytes <= most_bytes
                assert queue.bytes == 0 or len(queue)
            await clock.advance(10_000)
        assert not len(queue)
        assert queue.bytes == 0
        assert len(receiver.accepted) + len(receiver.dropped) + without_room == len(sizes)
        assert receiver.accepted == sorted(set(receiver.accepted))

    asyncio.run(play())
