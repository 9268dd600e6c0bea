"""Recorder: writes events about objects in the background."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mandor.errors import Conflict, Forbidden, Invalid, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.meta import Key, Meta, Object
from mandor.model.record import Event, EventSpec
from mandor.store.base import WRITES_MOST, Put, Store

log = logging.getLogger(__name__)

NOTES_MOST = 1_000
"""Distinct events that may wait to be written; further ones are dropped and counted."""
MESSAGE_MOST = 2048  # characters
REASON_MOST = 128  # characters
GATHER_SECONDS = 0.5
"""Seconds in which repetitions of an event are combined into one write."""
BACKOFF = Backoff(first_seconds=0.5, most_seconds=30.0, jitter=0.3)
TRIES = 5


@dataclass(slots=True)
class _Note:
    spec: EventSpec
    count: int
    first_at: float
    last_at: float


class Recorder:
    """`note` queues an event without blocking or raising; `run` writes the queue."""

    def __init__(self, store: Store, source: str, clock: Clock, *, notes_most: int = NOTES_MOST) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._notes_most = notes_most
        self._notes: dict[Key, _Note] = {}
        self._wake = asyncio.Event()
        self.dropped = 0

    def note(
        self,
        about: Object,
        reason: str,
        message: str,
        *,
        type: Literal["normal", "warning"] = "normal",  # noqa: A002 - it is the field's name
        node: str = "",
    ) -> None:
        spec = self._spec(about, reason, message, type, node)
        key = _event_key(about, spec)
        now = self._clock.now()
        known = self._notes.get(key)
        if known is not None:
            known.count += 1
            known.last_at = now
        elif len(self._notes) >= self._notes_most:
            self.dropped += 1
        else:
            self._notes[key] = _Note(spec, 1, now, now)
            self._wake.set()

    async def event(
        self,
        about: Object,
        reason: str,
        message: str,
        type: Literal["normal", "warning"] = "normal",  # noqa: A002 - it is the field's name
    ) -> Event:
        """Return the event that `note` would write, for callers that commit it together with their own change."""
        spec, now = self._spec(about, reason, message, type, ""), self._clock.now()
        key = _event_key(about, spec)
        return _event(key, _Note(spec, 1, now, now), 1, await self._store.get(key))

    def _spec(
        self,
        about: Object,
        reason: str,
        message: str,
        type: Literal["normal", "warning"],  # noqa: A002 - it is the field's name
        node: str,
    ) -> EventSpec:
        return EventSpec(
            about=str(about.key),
            type=type,
            reason=_clean(reason, REASON_MOST),
            message=_clean(message, MESSAGE_MOST),
            source=self._source,
            node=node or about.node,
        )

    @property
    def waiting(self) -> int:
        """Number of distinct events that are not written yet."""
        return len(self._notes)

    async def run(self) -> None:
        """Write queued events until cancelled."""
        failures = 0
        while True:
            await self._wake.wait()
            await self._clock.sleep(GATHER_SECONDS)
            try:
                await self.flush()
                failures = 0
            except MandorError as error:
                failures += 1
                log.warning("%d events wait to be written: %s", len(self._notes), error)
                await self._clock.sleep(BACKOFF.pause(failures))

    async def flush(self) -> None:
        """Write all queued events; those that cannot be written stay queued."""
        self._wake.clear()
        if self.dropped:
            log.warning("dropped %d events: more than %d waited to be written", self.dropped, self._notes_most)
            self.dropped = 0
        try:
            keys = list(self._notes)
            for start in range(0, len(keys), WRITES_MOST):
                await self._write(keys[start : start + WRITES_MOST])
        finally:
            if self._notes:
                self._wake.set()

    async def _write(self, keys: Sequence[Key]) -> None:
        for _ in range(TRIES):
            taken = {key: self._notes[key] for key in keys if key in self._notes}
            counts = {key: note.count for key, note in taken.items()}
            puts = [Put(_event(key, note, counts[key], await self._store.get(key))) for key, note in taken.items()]
            if not puts:
                return
            try:
                await self._store.commit(*puts)
            except Conflict:
                continue  # Another server wrote the same event, or an old event was deleted: read again.
            except (Invalid, Forbidden) as error:  # For example about an instance that moved to another node.
                await self._write_apart(keys, error)
                return
            for key, note in taken.items():
                note.count -= counts[key]
                if not note.count:
                    del self._notes[key]
            return

    async def _write_apart(self, keys: Sequence[Key], error: Invalid | Forbidden) -> None:
        """Write the events one by one, so that one that can never be stored does not block the others."""
        if len(keys) > 1:
            for key in keys:
                await self._write([key])
            return
        log.error("dropped an event that cannot be stored: %s", error, extra={"facts": {"event": keys[0]}})
        self._notes.pop(keys[0], None)


def _clean(text: str, most: int) -> str:
    """Return text that can be stored: invalid characters are replaced, long text is cut."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def _event_key(about: Object, spec: EventSpec) -> Key:
    """Return the key, a hash of the content: repetitions are one event, also across restarts."""
    parts = (about.meta.uid, spec.about, spec.type, spec.reason, spec.message, spec.source, spec.node)
    name = hashlib.blake2b("\0".join(parts).encode(), digest_size=10).hexdigest()
    return Key(Event.kind, about.meta.namespace or "default", name)


def _event(key: Key, note: _Note, count: int, stored: Object | None) -> Event:
    spec = note.spec
    known = stored.spec.count if isinstance(stored, Event) else 0
    first_at = stored.spec.first_at if isinstance(stored, Event) else note.first_at
    return Event(
        meta=stored.meta if stored is not None else Meta(name=key.name, namespace=key.namespace),
        spec=EventSpec(
            about=spec.about,
            type=spec.type,
            reason=spec.reason,
            message=spec.message,
            source=spec.source,
            node=spec.node,
            count=known + count,
            first_at=first_at,
            last_at=note.last_at,
        ),
    )
