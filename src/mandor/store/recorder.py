"""Recorder: sentences for people about objects, written in the background."""

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
"""So many different sentences may wait to be written; what comes on top is counted and dropped."""
MESSAGE_MOST = 2048
REASON_MOST = 128
GATHER_SECONDS = 0.5
"""The same sentence within this time is one write."""
BACKOFF = Backoff(first_seconds=0.5, most_seconds=30.0, jitter=0.3)
TRIES = 5


@dataclass(slots=True)
class _Note:
    spec: EventSpec
    count: int
    first_at: float
    last_at: float


class Recorder:
    """`note` never blocks and never raises; `run` does the writing."""

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
        """As `note` would write it, for whoever commits it together with what it tells of: somebody waits for it."""
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
        """So many different sentences are not written yet."""
        return len(self._notes)

    async def run(self) -> None:
        """Write what was noted, for ever."""
        failures = 0
        while True:
            await self._wake.wait()
            await self._clock.sleep(GATHER_SECONDS)
            try:
                await self.flush()
                failures = 0
            except MandorError as error:
                failures += 1
                log.warning("%d events wait: %s", len(self._notes), error)
                await self._clock.sleep(BACKOFF.pause(failures))

    async def flush(self) -> None:
        """Write everything noted so far; what could not be written stays for the next time."""
        self._wake.clear()
        if self.dropped:
            log.warning("%d events were dropped: too many at once", self.dropped)
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
                continue  # Another server tells the same story, or an old event was cleared away: look again.
            except (Invalid, Forbidden) as error:  # About what is another node's by now, say.
                await self._write_apart(keys, error)
                return
            for key, note in taken.items():
                note.count -= counts[key]
                if not note.count:
                    del self._notes[key]
            return

    async def _write_apart(self, keys: Sequence[Key], error: Invalid | Forbidden) -> None:
        """One event that can never be stored must not hold up the others."""
        if len(keys) > 1:
            for key in keys:
                await self._write([key])
            return
        log.error("an event cannot be stored and is dropped: %s", error, extra={"facts": {"event": keys[0]}})
        self._notes.pop(keys[0], None)


def _clean(text: str, most: int) -> str:
    """Text that can be stored: what is no character is replaced, what is too long is cut."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 1] + "…"


def _event_key(about: Object, spec: EventSpec) -> Key:
    """The same sentence about the same object is the same event, whoever restarts in between."""
    parts = (about.meta.uid, spec.about, spec.type, spec.reason, spec.message, spec.source, spec.node)
    name = hashlib.blake2b("\0".join(parts).encode(), digest_size=10).hexdigest()
    return Key(Event.kind, about.meta.namespace or "default", name)


def _event(key: Key, note: _Note, count: int, stored: Object | None) -> Event:
    spec = note.spec
    told = stored.spec.count if isinstance(stored, Event) else 0
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
            count=told + count,
            first_at=first_at,
            last_at=note.last_at,
        ),
    )
