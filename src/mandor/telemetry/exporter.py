"""Exporter: sends the spans of a tracer in batches, in the background; an unreachable receiver costs spans only."""

import logging
from collections.abc import Mapping, Sequence

from mandor import __version__
from mandor.errors import Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, SystemClock
from mandor.telemetry.batch_sender import Attempt, BatchSender, RetryPolicy, Verdict
from mandor.telemetry.otlp import encode, refused
from mandor.telemetry.receiver import HttpReceiver
from mandor.telemetry.span import Span, Value
from mandor.telemetry.target import TIMEOUT_SECONDS, Target
from mandor.telemetry.tracer import Tracer

log = logging.getLogger(__name__)

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
        clock: Clock | None = None,
        again: Backoff = AGAIN,
    ) -> None:
        """`resource`: attributes of the sender, such as `service.name`."""
        self._tracer, self._headers = tracer, target.headers
        self._receiver = HttpReceiver(target.url, ca=target.ca, seconds=TIMEOUT_SECONDS)
        self._resource: dict[str, Value] = {
            **target.resource,
            **resource,
            "telemetry.sdk.name": "mandor",
            "telemetry.sdk.language": "python",
            "telemetry.sdk.version": __version__,
        }
        policy = RetryPolicy(again, tries=TRIES_MOST, unexpected=Verdict.DROP)
        self._sender = BatchSender(clock or SystemClock(), self._post, policy, self._observe)
        self._failing = False

    async def run(self) -> None:
        """Send until cancelled, then send the remaining spans once."""
        queue = self._tracer.queue
        try:
            await self._sender.run(queue)
        finally:
            queue.close()
            try:
                await self._sender.drain(queue, LAST_SECONDS)
            finally:
                await self._receiver.close()

    async def _post(self, batch: Sequence[Span]) -> str:
        answer = await self._receiver.post(encode(batch, self._resource), self._headers)
        if answer.status in BUSY:
            raise Unavailable(f"it answers {answer}")
        lost, why = refused(answer.body, "rejectedSpans") if answer.accepted else (len(batch), str(answer))
        self._tracer.results["refused",] += lost
        self._tracer.results["sent",] += len(batch) - lost
        return f"{lost} spans were refused: {why}" if lost else ""

    def _observe(self, attempt: Attempt[Sequence[Span]]) -> None:
        """Count dropped spans, and log a failure once, until a request succeeds again."""
        if attempt.verdict is Verdict.DROP and attempt.batch is not None:
            self._tracer.results["dropped",] += len(attempt.batch)
        failure = attempt.answer or str(attempt.error or "")
        if failure and not self._failing:
            log.warning("traces do not reach %s: %s", self._receiver.url, failure)
        elif self._failing and not failure:
            log.info("traces reach %s again", self._receiver.url)
        self._failing = bool(failure)
