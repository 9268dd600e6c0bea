"""BatchSender: sends batches to one receiver in order, and retries, drops or stops after an error.

A batch stays with its source until it is delivered or dropped, so a durable source is delivered at least once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Protocol, TypeVar

from mandor.errors import Invalid, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event

B = TypeVar("B")

RETRY_AFTER_SECONDS_MOST = 600.0
"""Longest pause in seconds that a receiver can ask for."""


class Source(Protocol[B]):
    """Supplies batches: a queue in memory, a buffer on disk, or a position in the store."""

    async def next(self) -> B | None:
        """Wait for the oldest batch, the same one until `done`; None: the source is closed and empty."""

    async def done(self, batch: B) -> None:
        """Remove a batch that was delivered or dropped."""


class Verdict(Enum):
    """Consequence of a failed try."""

    RETRY = "retry"
    DROP = "drop"
    STOP = "stop"
    """The error is a defect of the program: it is raised."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Classifies errors: `Invalid` is a refusal of the batch; after other expected errors the receiver is down."""

    backoff: Backoff
    tries: int | None = None
    """Tries after which a batch is dropped while the receiver is down; None: never."""
    refusals: int = 1
    """Refusals after which a batch is dropped."""
    patience_seconds: float | None = None
    """Age at which a batch is dropped while the receiver is down; None: never."""
    unexpected: Verdict = Verdict.STOP
    """Verdict on errors other than `MandorError` and `OSError`; `DROP` treats them as refusals."""

    def verdict(self, error: Exception, tries: int, refusals: int, age_seconds: float) -> Verdict:
        """`refusals`: refused tries of the batch, including this one."""
        if not isinstance(error, MandorError | OSError) and self.unexpected is Verdict.STOP:
            return Verdict.STOP
        if is_refusal(error):
            return Verdict.DROP if refusals >= self.refusals else Verdict.RETRY
        over = self.tries is not None and tries >= self.tries
        old = self.patience_seconds is not None and age_seconds > self.patience_seconds
        return Verdict.DROP if over or old else Verdict.RETRY


def is_refusal(error: Exception) -> bool:
    """Return whether the receiver, or the code that sends, will never accept the batch."""
    return isinstance(error, Invalid) or not isinstance(error, MandorError | OSError)


@dataclass(frozen=True, slots=True)
class Attempt(Generic[B]):
    """Result of one try."""

    batch: B | None
    """None: the source itself failed."""
    number: int
    """1 for the first try of the batch."""
    seconds: float
    failures: int
    """Consecutive failed tries, of this batch and those before."""
    answer: str = ""
    error: Exception | None = None
    verdict: Verdict | None = None
    """None: the batch is delivered."""


class BatchSender(Generic[B]):
    """Sends one batch at a time; later batches wait for it."""

    def __init__(
        self,
        clock: Clock,
        send: Callable[[B], Awaitable[str]],
        policy: RetryPolicy,
        observe: Callable[[Attempt[B]], None],
    ) -> None:
        """`send` returns the receiver's answer as a short text; `observe` is called after each try."""
        self._clock, self._send, self._policy, self._observe = clock, send, policy, observe
        self._tries = self._refusals = self._failures = 0
        self._wake = asyncio.Event()

    async def run(self, source: Source[B]) -> None:
        """Send until the source is closed and empty. The source is asked again before each try."""
        while True:
            try:
                batch = await source.next()
                if batch is None:
                    return
                if await self._finish(batch, None):
                    await source.done(batch)
            except (MandorError, OSError) as error:
                self._failures += 1
                self._observe(Attempt(None, 1, 0.0, self._failures, error=error, verdict=Verdict.RETRY))
                await self._pause(error)

    async def deliver(self, batch: B, since: float | None = None) -> None:
        """Send one batch until it is delivered or dropped. `since`: time of its creation; None: now."""
        begin = self._clock.now() if since is None else since
        while not await self._finish(batch, begin):
            pass

    async def drain(self, source: Source[B], seconds: float) -> None:
        """Send the rest of a closed source for at most `seconds`; the first failure ends it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while (batch := await source.next()) is not None and (await self._try(batch, None)).error is None:
                    await source.done(batch)

    def retry_now(self) -> None:
        """End the current pause: the receiver was changed."""
        self._failures = 0
        self._wake.set()

    async def _finish(self, batch: B, since: float | None) -> bool:
        """Try once; return whether the batch is delivered or dropped. Pause before it can be tried again."""
        attempt = await self._try(batch, since)
        if attempt.error is not None and attempt.verdict is Verdict.STOP:
            raise attempt.error
        if attempt.error is not None and attempt.verdict is Verdict.RETRY:
            await self._pause(attempt.error)
            return False
        self._tries = self._refusals = 0
        return True

    async def _try(self, batch: B, since: float | None) -> Attempt[B]:
        begun = self._clock.monotonic()
        self._tries += 1
        try:
            answer = await self._send(batch)
        except Exception as error:  # The policy decides which errors are raised.
            self._failures += 1
            self._refusals += is_refusal(error)
            age = self._clock.now() - since if since is not None else 0.0
            verdict = self._policy.verdict(error, self._tries, self._refusals, age)
            seconds = self._clock.monotonic() - begun
            attempt = Attempt(batch, self._tries, seconds, self._failures, error=error, verdict=verdict)
        else:
            self._failures = 0
            attempt = Attempt(batch, self._tries, self._clock.monotonic() - begun, 0, answer)
        self._observe(attempt)
        return attempt

    async def _pause(self, error: Exception) -> None:
        """Wait as long as the back-off says, or the receiver if it asked for more (`retry_seconds`)."""
        asked = error.facts.get("retry_seconds") if isinstance(error, MandorError) else None
        least = min(asked, RETRY_AFTER_SECONDS_MOST) if isinstance(asked, float) else 0.0
        self._wake.clear()
        await wait_event(self._clock, max(least, self._policy.backoff.pause(self._failures)), self._wake)
