"""AuditExporter: sends sealed audit records to log sinks, each from its last position."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mandor.controllers.audit import SEAL_SECONDS, AuditKeeper
from mandor.errors import Conflict, Invalid, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.audit import Audit
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.meta import Key
from mandor.store.base import Put, Store
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

BACKOFF = Backoff(0.5, 30, jitter=0.3)
NOTE_SECONDS = 30.0
"""Seconds between two writes of a sink's position."""


@dataclass(slots=True)
class _Progress:
    """Position of one sink in the chain."""

    noted_at: float
    place: int = -1
    """Next position; -1: not read from the store yet."""
    noted: int = 0
    """Position that is stored."""


class AuditSink(Protocol):
    """A receiver of audit records."""

    async def send(self, records: Sequence[Audit]) -> None:
        """Send the records; return when all are received. `Unavailable`: retry; `Invalid`: they are never accepted."""

    async def close(self) -> None: ...


OpenSink = Callable[[LogSinkSpec], AuditSink]


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
        failures = 0
        sink, progress = self._open(spec), _Progress(noted_at=self._clock.monotonic())
        try:
            while True:
                try:
                    shipped = await self._ship_some(name, sink, spec, progress)
                    if failures:
                        log.info("log sink %s accepts audit records again", name)
                    failures = 0
                    if not shipped:
                        await self._clock.sleep(SEAL_SECONDS)
                except (MandorError, OSError) as error:
                    failures += 1
                    if failures == 1:
                        hint = error.hint if isinstance(error, MandorError) else None
                        log.warning(
                            "log sink %s does not accept audit records: %s%s", name, error, f" ({hint})" if hint else ""
                        )
                    await self._clock.sleep(BACKOFF.pause(failures))
        finally:
            await sink.close()

    async def _ship_some(self, name: str, sink: AuditSink, spec: LogSinkSpec, progress: _Progress) -> int:
        if progress.place < 0:
            stored = await self._store.get(Key(LogSink.kind, "", name))
            progress.place = progress.noted = stored.status.audits if isinstance(stored, LogSink) else 0
        batch = self._keeper.after(progress.place, spec.batch)
        if batch:
            try:
                await sink.send([record for _, record in batch])
            except Invalid as error:
                log.error("log sink %s rejected %d audit records permanently: %s", name, len(batch), error)
            progress.place = batch[-1][0]
        # Every agent watches log sinks, so their status is written rarely: after a change of leader a sink may get the
        # records of that interval twice.
        now = self._clock.monotonic()
        if progress.place > progress.noted and now - progress.noted_at >= NOTE_SECONDS:
            await self._note(name, progress.place)
            progress.noted, progress.noted_at = progress.place, now
        return len(batch)

    async def _note(self, name: str, place: int) -> None:
        """Write the sink's position; users may change its spec meanwhile."""
        while True:
            stored = await self._store.get(Key(LogSink.kind, "", name))
            if not isinstance(stored, LogSink) or stored.status.audits >= place:
                return
            try:
                status = msgspec.structs.replace(stored.status, audits=place)
                await self._store.commit(Put(stored.changed(status=status)))
            except Conflict:
                continue
            return
