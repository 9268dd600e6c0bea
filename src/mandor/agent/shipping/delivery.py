"""One sink on this node: takes lines within its rate, keeps them on disk, and gives them to the receiver in order."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mandor.agent.journal import Blocking, replace_file
from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import Sink
from mandor.agent.shipping.spool import Batch, Spool
from mandor.errors import Invalid, MandorError, TooLarge, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.lib.metrics import Counts
from mandor.model.log_sink import LogSink, SinkHealth

log = logging.getLogger(__name__)

BACKOFF = Backoff(0.5, 30, jitter=0.3)
TELL_SECONDS = 60.0
"""So often the numbers of a sink are told, if it does not turn meanwhile."""


class TokenBucket:
    """`rate` lines a second, twice as many at once."""

    __slots__ = ("_at", "_burst", "_left", "_rate", "left_out")

    def __init__(self, rate: int) -> None:
        self._rate, self._burst = rate, 2.0 * rate
        self._left, self._at = self._burst, 0.0
        self.left_out = 0
        """Since the last line that was taken."""

    def take(self, at: float) -> bool:
        """Whether a line of that time goes through; a clock that jumps back gives nothing."""
        if at > self._at:
            self._left = min(self._burst, self._left + (at - self._at) * self._rate)
            self._at = at
        if self._left < 1.0:
            self.left_out += 1
            return False
        self._left -= 1.0
        return True

    def confess(self) -> int:
        """How many were left out before this line; the count begins anew."""
        found, self.left_out = self.left_out, 0
        return found


class SinkDelivery:
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
        """`health_changed`: it serves again, or does so no longer; `sends`: counted by sink and result."""
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
        self.begin = self._begun()
        """On this node's clock: earlier lines are not for it."""
        self.shipped = 0
        self.dropped: dict[str, int] = {"rate": 0, "refused": 0, "disk": 0}
        self._state = SinkHealth(state="Serving", since=clock.now())
        self._told = clock.monotonic()

    @property
    def name(self) -> str:
        return self.value.meta.name

    def change(self, sink: LogSink) -> None:
        """The same sink, told otherwise."""
        self.value = sink
        self._buckets.clear()
        self._spool.resize(int(sink.spec.buffer))
        self._news.set()

    # Lines come.

    def offer(self, line: Line, rate_key: str) -> None:
        """`rate_key`: who shares a rate."""
        if line.at < self.begin:
            return
        bucket = self._buckets.get(rate_key)
        if bucket is None:
            bucket = self._buckets[rate_key] = TokenBucket(self.value.spec.rate)
        if not bucket.take(line.at):
            self.dropped["rate"] += 1
            return
        if left_out := bucket.confess():
            said = f"mandor: {left_out} lines were left out here: more than {self.value.spec.rate} a second"
            self._pending.append(msgspec.structs.replace(line, text=said))
        self._pending.append(line)

    def missed(self, lines: int) -> None:
        self.dropped["rate"] += lines

    @property
    def pending(self) -> int:
        return len(self._pending)

    def forget(self, living: set[str]) -> None:
        """The rates of those that are no more."""
        for rate_key in self._buckets.keys() - living:
            del self._buckets[rate_key]

    async def flush(self) -> None:
        """On disk when this returns, unless there is no room for it."""
        async with self._lock:
            lines, self._pending = self._pending, []
            if not lines:
                return
            try:
                await self._blocking(self._spool.append, lines)
            except OSError as error:
                self.dropped["disk"] += len(lines)
                self._say("Failing", f"lines cannot be kept on disk and are dropped: {error.strerror or error}")
                return
        self._oldest = self._oldest or lines[0].at
        self._news.set()

    # Lines go.

    async def run(self) -> None:
        """For ever."""
        failures = 0
        sink, of = None, None
        try:
            while True:
                self._news.clear()
                spec = self.value.spec
                if sink is None or of != spec:
                    if sink is not None:
                        await sink.close()
                    sink, of, failures = self._open_sink(self.value), spec, 0
                batch = await self._next() if spec.active else None
                if batch is None:
                    self._oldest = 0.0
                    await wait_event(self._clock, None, self._news)
                    continue
                try:
                    await self._deliver(sink, batch)
                    failures = 0
                except (MandorError, OSError) as error:
                    failures += 1
                    hint = error.hint if isinstance(error, MandorError) else None
                    self._say("Failing", f"{error} ({hint})" if hint else str(error))
                    await self._clock.sleep(BACKOFF.pause(failures))
        finally:
            if sink is not None:
                await sink.close()

    async def _next(self) -> Batch | None:
        async with self._lock:
            batch: Batch | None = await self._blocking(self._spool.read, self.value.spec.batch)
        if batch is not None and batch.lines:
            self._oldest = batch.lines[0].at
        return batch

    async def _deliver(self, sink: Sink, batch: Batch) -> None:
        """`Unavailable`: the same again later."""
        refused = await self._send(sink, batch.lines)
        async with self._lock:
            await self._blocking(self._spool.done, batch)
        self.shipped += len(batch.lines) - refused
        if not refused:
            self._say("Serving", "")

    async def _send(self, sink: Sink, lines: Sequence[Line]) -> int:
        """How many were refused for good."""
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
        self._say("Failing", f"{count} lines were refused: {error}")
        return count

    # How it goes.

    def _say(self, state: str, message: str) -> None:
        before = self._state
        if (before.state, before.message) == (state, message):
            return
        if state == "Failing":
            log.warning("log sink %s: %s", self.name, message)
        elif before.state == "Failing":
            log.info("log sink %s takes lines again", self.name)
        since = self._clock.now() if before.state != state else before.since
        self._state = SinkHealth(state="Failing" if state == "Failing" else "Serving", since=since, message=message)
        self._count()
        self._health_changed()

    def health(self) -> SinkHealth:
        """The numbers in it change about once a minute: whoever stores it writes no more often."""
        if self._clock.monotonic() - self._told >= TELL_SECONDS:
            self._count()
        return self._state

    def _count(self) -> None:
        self._told = self._clock.monotonic()
        self._state = msgspec.structs.replace(
            self._state, shipped=self.shipped, dropped=sum(self.drops.values()), waiting=self._spool.waiting
        )

    @property
    def drops(self) -> dict[str, int]:
        """By reason."""
        return {**self.dropped, "buffer": self._spool.dropped}

    @property
    def waiting(self) -> int:
        return self._spool.waiting

    @property
    def size(self) -> int:
        return self._spool.size

    @property
    def lag(self) -> float:
        """How old the oldest line is that nobody has taken, in seconds."""
        return max(0.0, self._clock.now() - self._oldest) if self._oldest else 0.0

    async def remove(self) -> None:
        """The sink is no more, nor what was kept for it."""
        async with self._lock:
            await self._blocking(shutil.rmtree, self._folder, True)

    def _begun(self) -> float:
        path = self._folder / "begin"
        try:
            return float(path.read_text())
        except (OSError, ValueError):
            now = self._clock.now()
            replace_file(path, str(now).encode(), durable=False)
            return now
