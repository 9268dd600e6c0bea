"""Watches and snapshots over HTTP: lines of JSON, one chunk for all that has arrived."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Send

from mandor.api.access import SECRETIVE, Sight, redacted
from mandor.api.caller import Caller
from mandor.api.http.request import send_problem
from mandor.api.labels import Select
from mandor.api.operation import NDJSON
from mandor.api.parts import ApiParts
from mandor.api.revocation import ENDS
from mandor.api.supplies import Supplier
from mandor.api.wire import error_line, line_of
from mandor.errors import MandorError
from mandor.lib.at_once import Waits, at_once
from mandor.model.codec import encode
from mandor.model.meta import Object
from mandor.store.base import Change, Listing
from mandor.store.feed import Watch

log = logging.getLogger("mandor.api")

CHUNK = 50
"""So many lines are sent at once at most."""
PIECE_BYTES = 128 * 1024
"""What is longer than that together is sent line by line: each waits until the caller has read most of what came
before."""
CHECK_SECONDS = 10.0
LAST_WORDS_SECONDS = 5.0
"""How long the caller may take to read why its watch ends."""
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", NDJSON.encode()),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),
        (b"x-content-type-options", b"nosniff"),
    ],
}


@dataclass(slots=True)
class WatchStream:
    """One watcher's answer."""

    parts: ApiParts
    caller: Caller
    kind: str | None
    sight: Sight
    select: Select
    since: int
    supplies: bool = False

    async def open(self) -> "OpenWatch":
        """Begin to watch; raises what the store says before the answer has begun."""
        self.parts.streams.check(self.caller.identity)
        changes = self.parts.store.watch(self.kind, since=self.since, where=self.sight.where)
        first = await anext(changes)
        return OpenWatch(self, changes, first)

    @property
    def plain(self) -> bool:
        """Whether this watcher sees exactly what the store gives."""
        if self.sight.shows is not None or self.select.selector:
            return False
        where = self.sight.where
        secretive = (where.kinds if self.kind is None and where.kinds else {self.kind}) & SECRETIVE
        # A node may know the secrets of the sessions that are dialled back from it.
        return not secretive or (secretive == {"session"} and bool(where.node) and where.node == self.caller.node)

    async def narrowed(self, changes: Sequence[Change]) -> list[Change]:
        """What this watcher sees of these changes."""
        found = []
        for change in changes:
            if change.bookmark:
                found.append(change)
                continue
            await self.select.learn(self.parts.store, change.value)
            before, after = self._seen(change.before), self._seen(change.after)
            if before is change.before and after is change.after:
                found.append(change)
            elif before is not None or after is not None:
                found.append(Change(change.revision, before, after))
        return found

    def _seen(self, value: Object | None) -> Object | None:
        if value is None or (self.sight.shows is not None and not self.sight.shows(value)):
            return None
        return redacted(value, self.caller) if self.select.matches(value) else None


@dataclass(slots=True)
class OpenWatch:
    stream: WatchStream
    changes: AsyncIterator[Sequence[Change]]
    first: Sequence[Change]

    async def run(self, receive: Receive, send: Send) -> None:
        begun = False

        async def work() -> None:
            nonlocal begun
            await send(START)
            begun = True
            if isinstance(self.changes, Watch):
                self.changes.on_idle(partial(self._tell_at_once, send))
            try:
                await self._send_all(send)
            except MandorError as error:
                await _send(send, error_line(error))

        try:
            # When the server stops, the answer ends as it should: the caller resumes elsewhere.
            try:
                await self.stream.parts.streams.run(receive, work, self.stream.caller)
            except ENDS as error:
                if not begun:
                    await send_problem(send, error)
                    return
                # A caller that does not read is not waited for.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORDS_SECONDS):
                        await _send(send, error_line(error))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            closing = getattr(self.changes, "aclose", None)
            if closing is not None:
                await closing()

    def _tell_at_once(self, send: Send, bookmark: Change) -> bool:
        """Thousands of streams have nothing to tell most of the time, and no task is woken for it. False: this one is
        not to be told just so."""
        stream = self.stream
        if stream.sight.still is not None:
            return False
        try:
            at_once(stream.parts.auth.check_still(stream.caller))
            at_once(_send(send, line_of(bookmark)))
        except (MandorError, Waits):
            # The token was revoked, or the caller reads too slowly: the task sees to both.
            return False
        return True

    async def _send_all(self, send: Send) -> None:
        plain, parts = self.stream.plain, self.stream.parts
        batch = self.first
        self.first = ()
        checked = parts.clock.monotonic()
        supplier = Supplier(parts.supplies) if self.stream.supplies else None
        while True:
            now = parts.clock.monotonic()
            if now - checked > CHECK_SECONDS or batch[-1].bookmark:
                # A token that was revoked ends its watches, too.
                checked = now
                await parts.auth.check_still(self.stream.caller)
                if self.stream.sight.still is not None:
                    await self.stream.sight.still()
            if not plain:
                batch = await self.stream.narrowed(batch)
            for start in range(0, len(batch), CHUNK):
                part = batch[start : start + CHUNK] if len(batch) > CHUNK else batch
                lines = [change.line or line_of(change) for change in part]
                if supplier is not None:
                    lines = [*await supplier.lines(part), *lines]
                await _send_lines(send, lines)
            batch = ()
            try:
                batch = await anext(self.changes)
            except StopAsyncIteration:
                return


async def _send_lines(send: Send, lines: Sequence[bytes]) -> None:
    data = b"".join(lines)
    if len(data) <= PIECE_BYTES:
        await _send(send, data)
        return
    del data
    for line in lines:
        await _send(send, line)


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def send_snapshot(
    parts: ApiParts, listing: Listing, sight: Sight, select: Select, caller: Caller, receive: Receive, send: Send
) -> None:
    """`{revision}`, the objects, and `{end: count}`, without which a snapshot is not whole."""

    async def work() -> None:
        await send(START)
        await _send(send, b'{"revision":%d}\n' % listing.revision)
        count = 0
        for start in range(0, len(listing.items), CHUNK):
            lines = [
                encode(redacted(value, caller))
                for value in listing.items[start : start + CHUNK]
                if (sight.shows is None or sight.shows(value)) and select.matches(value)
            ]
            count += len(lines)
            if lines:
                await _send_lines(send, [line + b"\n" for line in lines])
            await asyncio.sleep(0)  # a caller that reads fast makes no pause by itself
        await _send(send, b'{"end":%d}\n' % count)

    await parts.streams.run(receive, work, caller)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
