"""Exporter: sends the spans of a tracer in batches, in the background; an unreachable receiver costs spans only."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from mandor import __version__
from mandor.errors import Unavailable
from mandor.lib.backoff import Backoff
from mandor.telemetry.otlp import encode, refused
from mandor.telemetry.receiver import HttpReceiver
from mandor.telemetry.span import Span, Value
from mandor.telemetry.target import TIMEOUT_SECONDS, Target
from mandor.telemetry.tracer import Tracer

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
TRIES_MOST = 5
AGAIN = Backoff(1.0, 30.0, jitter=0.3)
LAST_SECONDS = 2.0
"""Seconds for sending the last spans when the process ends."""
BUSY = frozenset({429, 502, 503, 504})
"""HTTP statuses after which the standard requires a retry; all others but 2xx are final."""


class Exporter:
    def __init__(
        self,
        tracer: Tracer,
        target: Target,
        resource: Mapping[str, Value],
        *,
        pause_seconds: float = PAUSE_SECONDS,
        again: Backoff = AGAIN,
    ) -> None:
        """`resource`: attributes of the sender, such as `service.name`."""
        self._tracer, self._headers, self._pause_seconds, self._again = tracer, target.headers, pause_seconds, again
        self._receiver = HttpReceiver(target.url, ca=target.ca, seconds=TIMEOUT_SECONDS)
        self._resource: dict[str, Value] = {
            **target.resource,
            **resource,
            "telemetry.sdk.name": "mandor",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.version": __version__,
        }
        self._failing = False

    async def run(self) -> None:
        """Send until cancelled, then send the remaining spans once."""
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_seconds):
                        await self._tracer.enough.wait()
                while batch := self._tracer.take():
                    await self._send(batch)
        finally:
            await self._close()

    async def _send(self, batch: Sequence[Span]) -> None:
        sent = False
        try:
            for failures in range(1, TRIES_MOST + 1):
                if failures > 1:
                    await asyncio.sleep(self._again.pause(failures - 1))
                try:
                    await self._post(batch)
                    sent = True
                    return
                except Unavailable as error:
                    self._log_failure(str(error))
        except Exception as error:  # Any error: only spans may be lost by it.
            self._log_failure(f"{type(error).__name__}: {error}")
        finally:
            if not sent:
                self._tracer.results["dropped",] += len(batch)

    async def _post(self, batch: Sequence[Span]) -> None:
        answer = await self._receiver.post(encode(batch, self._resource), self._headers)
        if answer.status in BUSY:
            raise Unavailable(f"it answers {answer}")
        lost, why = refused(answer.body, "rejectedSpans") if answer.accepted else (len(batch), str(answer))
        self._tracer.results["refused",] += lost
        self._tracer.results["sent",] += len(batch) - lost
        if lost:
            self._log_failure(f"{lost} spans were refused: {why}")
        elif self._failing:
            self._failing = False
            log.info("traces reach %s again", self._receiver.url)

    async def _close(self) -> None:
        try:
            with suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(LAST_SECONDS):
                    while batch := self._tracer.take():
                        await self._post(batch)
        finally:
            await self._receiver.close()

    def _log_failure(self, failure: str) -> None:
        """Log a failure once, until a request succeeds again."""
        if not self._failing:
            self._failing = True
            log.warning("traces do not reach %s: %s", self._receiver.url, failure)
