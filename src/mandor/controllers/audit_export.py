"""AuditExporter: sends sealed audit records to log sinks, each from its last position."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from mandor.controllers.audit import SEAL_SECONDS, AuditKeeper
from mandor.errors import Conflict, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.audit import Audit
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.meta import Key
from mandor.store.base import Put, Store
from mandor.store.mirror import Mirror
from mandor.telemetry.batch_sender import Attempt, BatchSender, RetryPolicy, Verdict

log = logging.getLogger(__name__)

BACKOFF = Backoff(0.5, 30, jitter=0.3)
STORE_SECONDS = 30.0
"""Seconds between two writes of a sink's position."""


class AuditSink(Protocol):
    """A receiver of audit records."""

    async def send(self, records: Sequence[Audit]) -> None:
        """Send the records; return when all are received. `Unavailable`: retry; `Invalid`: they are never accepted."""

    async def close(self) -> None: ...


OpenSink = Callable[[LogSinkSpec], AuditSink]
Batch = Sequence[tuple[int, Audit]]
"""Records with their positions."""


class AuditExporter:
    """The store is the buffer: a sink's position is in its status, so that a new leader continues there."""

    def __init__(self, store: Store, clock: Clock, keeper: AuditKeeper, open_sink: OpenSink) -> None:
        self._store, self._clock, self._keeper, self._open = store, clock, keeper, open_sink

    async def run(self) -> None:
        """Export until cancelled."""
        running: dict[str, tuple[LogSinkSpec, asyncio.Task[None]]] = {}
        async with Mirror(self._store, LogSink.kind) as sinks, Background() as tasks:
            await sinks.synced()
            while True:
                found = [each for each in sinks.items() if isinstance(each, LogSink)]
                wanted = {each.meta.name: each.spec for each in found if each.spec.audit and each.spec.active}
                for name in [name for name, (spec, _) in running.items() if wanted.get(name) != spec]:
                    _, task = running.pop(name)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                for name in sorted(wanted.keys() - running.keys()):
                    running[name] = wanted[name], tasks.start(self._ship(name, wanted[name]), f"audits to {name}")
                await self._clock.sleep(SEAL_SECONDS)

    async def _ship(self, name: str, spec: LogSinkSpec) -> None:
        sink = self._open(spec)

        async def send(batch: Batch) -> str:
            await sink.send([record for _, record in batch])
            return ""

        def observe(attempt: Attempt[Batch]) -> None:
            error = attempt.error
            if attempt.verdict is Verdict.DROP:
                count = len(attempt.batch or ())
                log.error("log sink %s rejected %d audit records permanently: %s", name, count, error)
            elif error is not None and attempt.number == 1:
                hint = f" ({error.hint})" if isinstance(error, MandorError) and error.hint else ""
                log.warning("log sink %s does not accept audit records: %s%s", name, error, hint)
            elif error is None and attempt.number > 1:
                log.info("log sink %s accepts audit records again", name)

        records = _Records(self._store, self._clock, self._keeper, name, spec.batch)
        try:
            await BatchSender(self._clock, send, RetryPolicy(BACKOFF), observe).run(records)
        finally:
            await sink.close()


class _Records:
    """Audit records after the position of one sink."""

    def __init__(self, store: Store, clock: Clock, keeper: AuditKeeper, name: str, most: int) -> None:
        self._store, self._clock, self._keeper = store, clock, keeper
        self._key, self._most = Key(LogSink.kind, "", name), most
        self._place = -1
        """Next position; -1: not read from the store yet."""
        self._stored, self._stored_at = 0, clock.monotonic()
        """Position that is stored, and when it was stored."""

    async def next(self) -> Batch:
        if self._place < 0:
            sink = await self._store.get(self._key)
            self._place = self._stored = sink.status.audits if isinstance(sink, LogSink) else 0
        while True:
            # Every agent watches log sinks, so their status is written rarely: after a change of leader a sink may get
            # the records of that interval twice.
            now = self._clock.monotonic()
            if self._place > self._stored and now - self._stored_at >= STORE_SECONDS:
                await self._store_place()
                self._stored, self._stored_at = self._place, now
            if batch := self._keeper.after(self._place, self._most):
                return batch
            await self._clock.sleep(SEAL_SECONDS)

    async def done(self, batch: Batch) -> None:
        self._place = batch[-1][0]

    async def _store_place(self) -> None:
        """Write the sink's position; users may change its spec meanwhile."""
        while True:
            sink = await self._store.get(self._key)
            if not isinstance(sink, LogSink) or sink.status.audits >= self._place:
                return
            try:
                status = msgspec.structs.replace(sink.status, audits=self._place)
                await self._store.commit(Put(sink.changed(status=status)))
            except Conflict:
                continue
            return
