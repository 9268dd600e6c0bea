"""Outbox of one receiver: sends every event after a stored revision, in order, at least once.

The stored events are the queue. Only the receiver's progress is stored; after a restart or a change of the leader,
sending continues from there and repeats at most one second of messages.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

import msgspec

from mandor.errors import Conflict, Expired, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.steps import chosen, ordered
from mandor.lib.tasks import Background
from mandor.lib.turns import in_turns
from mandor.model.receiver import LOG_MOST, Delivery, Outcome, Receiver
from mandor.model.record import Event
from mandor.notify.message import Message, message_of, synthetic_message, wanted
from mandor.notify.sink import Sink
from mandor.store.base import Change, Listing, Put, Store
from mandor.store.list_watch import ListWatch
from mandor.store.recorder import Recorder
from mandor.telemetry.batch_sender import Attempt, BatchSender, RetryPolicy, Verdict

log = logging.getLogger(__name__)

BACKOFF = Backoff(first_seconds=1.0, most_seconds=120.0, jitter=0.3)
STORE_BACKOFF = Backoff(first_seconds=0.5, most_seconds=30.0, jitter=0.3)
SAVE_SECONDS = 1.0
"""Minimum time between two writes of the progress."""
IDLE_SAVE_SECONDS = 600.0
"""Time between writes of the progress while nothing is sent."""
REPORT_FAILURES = 3
"""Consecutive failures after which an event about the receiver is recorded."""
KEPT_SECONDS = 86_000.0
KEPT_MOST = 20_000
"""Number of events that are kept, for a day at most; a receiver that was away longer is notified of lost events."""
ANSWER_MOST = 200
TRIES = 5


class Outbox:
    """Sends to one receiver until cancelled; a receiver that does not answer delays no other."""

    def __init__(
        self, store: Store, clock: Clock, recorder: Recorder, receiver: Receiver, sink: Sink, cluster: str
    ) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder
        self._receiver, self._sink, self._cluster = receiver, sink, cluster
        self._spec, self._status = receiver.spec, receiver.status
        if not self._status.revision:
            # A new receiver gets the events after its own creation.
            self._status = msgspec.structs.replace(self._status, revision=receiver.meta.version, at=clock.now())
        self._saved = receiver.status
        self._saved_at = clock.monotonic()
        self._dirty = asyncio.Event()
        self._dirty.set()
        spec = self._spec
        policy = RetryPolicy(
            BACKOFF, refusals=spec.attempts, patience_seconds=float(spec.patience), unexpected=Verdict.DROP
        )
        self._sender = BatchSender(clock, self._send, policy, self._observe)

    async def run(self) -> None:
        try:
            async with Background() as tasks:
                tasks.start(self._keep(), f"progress of {self._receiver.key}")
                await self._follow()
        finally:
            with suppress(MandorError, TimeoutError):
                async with asyncio.timeout(2):
                    await self._save()
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await self._sink.close()

    # Reading.

    async def _follow(self) -> None:
        events = ListWatch(
            self._store,
            Event.kind,
            backoff=STORE_BACKOFF,
            sleep=self._clock.sleep,
            resume=True,
            since=self._status.revision,
        )

        async def starting() -> None:
            if events.revision is not None:
                events.revision = self._status.revision  # an interrupted batch was sent in part

        await events.run(self._catch_up, self._take, self._interrupted, starting)

    def _interrupted(self, error: MandorError, failures: int) -> None:
        if failures > 1 or not isinstance(error, Expired):
            log.warning("%s: the store is unavailable: %s", self._receiver.key, error)

    async def _take(self, batch: Iterable[Change]) -> None:
        last = self._status.revision
        for change in batch:
            # One commit can have several events: it is done when the last of them is sent.
            self._reach(change.revision - 1)
            last = change.revision
            if isinstance(change.after, Event):
                await self._offer(change.after)
        self._reach(last)

    async def _catch_up(self, listing: Listing) -> None:
        """Send the events that are still stored; a repeated event is sent once, with its count."""
        since, at = self._status.revision, self._status.at
        after = chosen(
            listing.items,
            lambda piece: [each for each in piece if isinstance(each, Event) and each.meta.version > since],
        )
        events = await in_turns(ordered(await in_turns(after), key=lambda each: each.meta.version))
        other = since > listing.revision
        if other or self._clock.now() - at > KEPT_SECONDS or len(listing.items) >= KEPT_MOST:
            await self._sender.deliver(self._lost(since, listing.revision))
        if other:
            self._change(revision=0)
        for event in events:
            self._reach(event.meta.version - 1)
            await self._offer(event)
        self._reach(listing.revision)

    def _lost(self, since: int, until: int) -> Message:
        text = (
            f"events between the revisions {since} and {until} are missing here if they are no longer stored: "
            "nothing could be sent for too long"
        )
        now = self._clock.now()
        where = self._receiver.key
        return synthetic_message(
            self._cluster, f"lost.{since}.{until}", where.kind, where.name, "EventsLost", text, now
        )

    # Sending.

    async def _offer(self, event: Event) -> None:
        if wanted(self._spec, event):
            await self._sender.deliver(message_of(event, self._cluster), event.spec.last_at)

    async def _send(self, message: Message) -> str:
        try:
            async with asyncio.timeout(float(self._spec.timeout) + 1):
                return await self._sink.send(message)
        except TimeoutError as error:
            raise Unavailable(f"no answer within {self._spec.timeout}") from error

    def _observe(self, attempt: Attempt[Message]) -> None:
        message, error = attempt.batch, attempt.error
        assert message is not None, "an outbox has no source that can fail"
        if error is None:
            self._log(message, "delivered", attempt, attempt.answer)
            if self._status.failures >= REPORT_FAILURES:
                self._recorder.note(self._receiver, "ReceiverIsBack", "messages are accepted again")
            self._change(delivered=self._status.delivered + 1, failures=0, message="")
            return
        answer = str(error)
        if not isinstance(error, MandorError | OSError):
            log.error("%s: a message was not sent", self._receiver.key, exc_info=error)
            answer = f"{type(error).__name__}: {error}"
        answer = answer[:ANSWER_MOST]
        self._log(message, "failed", attempt, answer)
        self._change(failures=self._status.failures + 1, message=answer)
        if self._status.failures == REPORT_FAILURES:
            self._recorder.note(self._receiver, "ReceiverFails", answer, type="warning")
        if attempt.verdict is Verdict.DROP:
            log.error("%s: %s (%s) is given up: %s", self._receiver.key, message.type, message.id, answer)
            self._log(message, "given up", attempt, answer)
            self._change(given_up=self._status.given_up + 1)
            text = f"a message was not delivered and is dropped: {answer}"
            self._recorder.note(self._receiver, "MessageGivenUp", text, type="warning")

    # Progress.

    def _log(self, message: Message, outcome: Outcome, attempt: Attempt[Message], answer: str) -> None:
        entry = Delivery(
            at=self._clock.now(),
            id=message.id,
            type=message.type,
            subject=message.subject,
            outcome=outcome,
            attempt=attempt.number,
            milliseconds=round(attempt.seconds * 1000),
            says=answer,
        )
        self._change(log=(entry, *self._status.log)[:LOG_MOST])

    def _reach(self, revision: int) -> None:
        if revision > self._status.revision:
            self._status = msgspec.structs.replace(self._status, revision=revision, at=self._clock.now())
            if self._clock.monotonic() - self._saved_at > IDLE_SAVE_SECONDS:
                self._dirty.set()

    def _change(self, **fields: object) -> None:
        self._status = msgspec.structs.replace(self._status, **fields)
        self._dirty.set()

    async def _keep(self) -> None:
        failures = 0
        while True:
            await self._dirty.wait()
            try:
                await self._save()
                failures = 0
                await self._clock.sleep(SAVE_SECONDS)
            except MandorError as error:
                failures += 1
                log.warning("cannot store the progress of %s: %s", self._receiver.key, error)
                await self._clock.sleep(STORE_BACKOFF.pause(failures))

    async def _save(self) -> None:
        for _ in range(TRIES):
            self._dirty.clear()
            status = self._status
            if status == self._saved:
                return
            stored = await self._store.get(self._receiver.key)
            if stored is None or stored.meta.uid != self._receiver.meta.uid:
                return  # The receiver was deleted; this task is about to end.
            try:
                await self._store.commit(Put(stored.changed(status=status)))
            except Conflict:
                self._dirty.set()
                continue
            self._saved, self._saved_at = status, self._clock.monotonic()
            return


SinkFor = Callable[[Receiver], Sink]
