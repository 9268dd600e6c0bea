"""Delivers lines to one sink: limits their rate, buffers them on disk, and sends them in order."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import msgspec

from mandor.agent.journal import Blocking, replace_file
from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import Sink
from mandor.agent.shipping.spool import Batch, Spool
from mandor.errors import Invalid, MandorError, TooLarge, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.metrics import Counts
from mandor.model.log_sink import LogSink, LogSinkSpec, SinkHealth
from mandor.telemetry.batch_sender import Attempt, BatchSender, RetryPolicy

log = logging.getLogger(__name__)

BACKOFF = Backoff(0.5, 30, jitter=0.3)
COUNT_SECONDS = 60.0
"""Interval in seconds between updates of the counters in the health of a sink."""


class TokenBucket:
    """Token bucket on the times of lines, so that catching up costs no tokens: `rate` per second, bursts of double."""

    __slots__ = ("_at", "_burst", "_left", "_rate", "dropped")

    def __init__(self, rate: int) -> None:
        self._rate, self._burst = rate, 2.0 * rate
        self._left, self._at = self._burst, 0.0
        self.dropped = 0
        """Lines dropped since the last line that passed."""

    def take(self, at: float) -> bool:
        """Return whether a line of that time passes; a clock that is set back adds no tokens."""
        if at > self._at:
            self._left = min(self._burst, self._left + (at - self._at) * self._rate)
            self._at = at
        if self._left < 1.0:
            self.dropped += 1
            return False
        self._left -= 1.0
        return True

    def take_dropped(self) -> int:
        """Return the number of lines dropped before this one, and reset it."""
        found, self.dropped = self.dropped, 0
        return found


class SinkDelivery:
    """Buffers and sends the lines of one log sink."""

    def __init__(
        self,
        sink: LogSink,
        folder: Path,
        clock: Clock,
        blocking: Blocking,
        open_sink: Callable[[LogSink], Sink],
        health_changed: Callable[[], None],
        sends: Counts,
    ) -> None:
        """`health_changed`: called when the state or message of the sink changes; `sends`: count by sink and result."""
        self.value = sink
        self._folder, self._clock, self._blocking = folder, clock, blocking
        self._open_sink, self._health_changed = open_sink, health_changed
        self._sends = sends
        self._spool = Spool(folder, int(sink.spec.buffer))
        self._lock = asyncio.Lock()
        self._pending: list[Line] = []
        self._buckets: dict[str, TokenBucket] = {}
        self._news = asyncio.Event()
        self._oldest = 0.0
        self.begin = self._read_begin()
        """Time on this node's clock; earlier lines are not sent."""
        self.shipped = 0
        self.dropped: dict[str, int] = {"rate": 0, "refused": 0, "disk": 0}
        self._state = SinkHealth(state="Serving", since=clock.now())
        self._counted_at = clock.monotonic()
        self._sink: Sink | None = None
        self._opened: LogSinkSpec | None = None
        self._sender = BatchSender(clock, self._deliver, RetryPolicy(BACKOFF), self._observe)

    @property
    def name(self) -> str:
        return self.value.meta.name

    def change(self, sink: LogSink) -> None:
        """Apply a changed specification of the sink."""
        self.value = sink
        self._buckets.clear()
        self._spool.resize(int(sink.spec.buffer))
        self._news.set()
        self._sender.retry_now()

    # Incoming lines.

    def offer(self, line: Line, rate_key: str) -> None:
        """Queue a line, within the rate of the lines with the same `rate_key`."""
        if line.at < self.begin:
            return
        bucket = self._buckets.get(rate_key)
        if bucket is None:
            bucket = self._buckets[rate_key] = TokenBucket(self.value.spec.rate)
        if not bucket.take(line.at):
            self.dropped["rate"] += 1
            return
        if dropped := bucket.take_dropped():
            text = f"mandor: {dropped} lines were dropped here: more than {self.value.spec.rate} per second"
            self._pending.append(msgspec.structs.replace(line, text=text))
        self._pending.append(line)

    def missed(self, lines: int) -> None:
        self.dropped["rate"] += lines

    @property
    def pending(self) -> int:
        return len(self._pending)

    def forget(self, living: set[str]) -> None:
        """Drop the rates of all keys that are not in `living`."""
        for rate_key in self._buckets.keys() - living:
            del self._buckets[rate_key]

    async def flush(self) -> None:
        """Write the queued lines to disk; lines that do not fit are dropped and counted."""
        async with self._lock:
            lines, self._pending = self._pending, []
            if not lines:
                return
            try:
                await self._blocking(self._spool.append, lines)
            except OSError as error:
                self.dropped["disk"] += len(lines)
                self._set_state(
                    "Failing", f"lines are dropped, they cannot be written to disk: {error.strerror or error}"
                )
                return
        self._oldest = self._oldest or lines[0].at
        self._news.set()

    # Outgoing lines.

    async def run(self) -> None:
        """Send lines until cancelled."""
        try:
            await self._sender.run(self)
        finally:
            await self._close()

    async def next(self) -> Batch:
        """Wait for the oldest lines in the buffer."""
        while True:
            self._news.clear()
            if self._opened != self.value.spec:
                await self._close()
                self._sink, self._opened = self._open_sink(self.value), self.value.spec
            async with self._lock:
                batch = await self._blocking(self._spool.read, self.value.spec.batch)
            if batch is not None and self.value.spec.active:
                self._oldest = batch.lines[0].at if batch.lines else self._oldest
                return cast(Batch, batch)
            self._oldest = 0.0
            await self._news.wait()

    async def done(self, batch: Batch) -> None:
        async with self._lock:
            await self._blocking(self._spool.done, batch)

    async def _close(self) -> None:
        if self._sink is not None:
            sink, self._sink, self._opened = self._sink, None, None
            await sink.close()

    async def _deliver(self, batch: Batch) -> str:
        assert self._sink is not None
        refused = await self._send(self._sink, batch.lines)
        self.shipped += len(batch.lines) - refused
        if not refused:
            self._set_state("Serving", "")
        return ""

    def _observe(self, attempt: Attempt[Batch]) -> None:
        if attempt.error is not None:
            hint = attempt.error.hint if isinstance(attempt.error, MandorError) else None
            self._set_state("Failing", f"{attempt.error} ({hint})" if hint else str(attempt.error))

    async def _send(self, sink: Sink, lines: Sequence[Line]) -> int:
        """Send lines, in halves if they are too large; return the number that the receiver refused."""
        if not lines:
            return 0
        result = "error"
        try:
            await sink.send(lines)
            result = "ok"
            return 0
        except TooLarge as error:
            result = error.code
            if len(lines) > 1:
                half = len(lines) // 2
                return await self._send(sink, lines[:half]) + await self._send(sink, lines[half:])
            return self._refuse(lines, error)
        except Unavailable as error:
            result = error.code
            raise
        except Invalid as error:
            result = error.code
            return self._refuse(lines, error)
        finally:
            self._sends[self.name, result] += 1

    def _refuse(self, lines: Sequence[Line], error: Invalid) -> int:
        refused = error.facts.get("lines")
        count = min(refused, len(lines)) if isinstance(refused, int) else len(lines)
        self.dropped["refused"] += count
        self._set_state("Failing", f"the receiver refused {count} lines: {error}")
        return count

    # Health and metrics.

    def _set_state(self, state: str, message: str) -> None:
        before = self._state
        if (before.state, before.message) == (state, message):
            return
        if state == "Failing":
            log.warning("log sink %s: %s", self.name, message)
        elif before.state == "Failing":
            log.info("log sink %s accepts lines again", self.name)
        since = self._clock.now() if before.state != state else before.since
        self._state = SinkHealth(state="Failing" if state == "Failing" else "Serving", since=since, message=message)
        self._count()
        self._health_changed()

    def health(self) -> SinkHealth:
        """Return the health; its counters change about once a minute, to limit writes of the node's object."""
        if self._clock.monotonic() - self._counted_at >= COUNT_SECONDS:
            self._count()
        return self._state

    def _count(self) -> None:
        self._counted_at = self._clock.monotonic()
        self._state = msgspec.structs.replace(
            self._state, shipped=self.shipped, dropped=sum(self.drops.values()), waiting=self._spool.waiting
        )

    @property
    def drops(self) -> dict[str, int]:
        """Dropped lines by reason."""
        return {**self.dropped, "buffer": self._spool.dropped}

    @property
    def waiting(self) -> int:
        return self._spool.waiting

    @property
    def size(self) -> int:
        return self._spool.size

    @property
    def lag(self) -> float:
        """Age in seconds of the oldest line that was not delivered."""
        return max(0.0, self._clock.now() - self._oldest) if self._oldest else 0.0

    async def remove(self) -> None:
        """Delete the buffered lines of a deleted sink."""
        async with self._lock:
            await self._blocking(shutil.rmtree, self._folder, True)

    def _read_begin(self) -> float:
        path = self._folder / "begin"
        try:
            return float(path.read_text())
        except (OSError, ValueError):
            now = self._clock.now()
            replace_file(path, str(now).encode(), durable=False)
            return now
