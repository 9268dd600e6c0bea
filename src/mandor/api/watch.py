"""Watches and snapshots over HTTP: lines of JSON, sent in chunks."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.types import Receive, Send

from mandor.api.access import SECRETIVE, ReadScope, redacted
from mandor.api.caller import Caller
from mandor.api.http.request import send_problem
from mandor.api.labels import Select
from mandor.api.operation import NDJSON
from mandor.api.order_dependencies import OrderDependencySender
from mandor.api.parts import ApiParts
from mandor.api.revocation import ENDS
from mandor.api.wire import error_line, line_of
from mandor.errors import MandorError
from mandor.lib.at_once import Waits, at_once
from mandor.model.codec import encode
from mandor.model.meta import Object
from mandor.store.base import Change, Listing
from mandor.store.feed import Watch

log = logging.getLogger("mandor.api")

CHUNK = 50
"""Lines per chunk."""
PIECE_BYTES = 128 * 1024
"""A larger chunk is sent line by line, and each line waits until the client has read most of the ones before."""
CHECK_SECONDS = 10.0  # between two checks of the caller's token
LAST_LINE_SECONDS = 5.0
"""Time that a client has to read the error that ends its watch."""
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
    """The response to one watch request."""

    parts: ApiParts
    caller: Caller
    kind: str | None
    scope: ReadScope
    select: Select
    since: int
    supplies: bool = False

    async def open(self) -> "OpenWatch":
        """Start the watch; errors of the store are raised before the response begins."""
        self.parts.streams.check(self.caller.identity)
        changes = self.parts.store.watch(self.kind, since=self.since, where=self.scope.where)
        first = await anext(changes)
        return OpenWatch(self, changes, first)

    @property
    def plain(self) -> bool:
        """Whether the caller may read every change of the store's watch, unredacted."""
        if self.scope.shows is not None or self.select.selector:
            return False
        where = self.scope.where
        secretive = (where.kinds if self.kind is None and where.kinds else {self.kind}) & SECRETIVE
        # A node may read the secrets of the sessions that it dials back.
        return not secretive or (secretive == {"session"} and bool(where.node) and where.node == self.caller.node)

    async def narrowed(self, changes: Sequence[Change]) -> list[Change]:
        """Return the changes as the caller may read them."""
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
        if value is None or (self.scope.shows is not None and not self.scope.shows(value)):
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
                self.changes.on_idle(partial(self._send_bookmark, send))
            try:
                await self._send_all(send)
            except MandorError as error:
                await _send(send, error_line(error))

        try:
            # When the server stops, the response ends normally, and the client resumes at another server.
            try:
                await self.stream.parts.streams.run(receive, work, self.stream.caller)
            except ENDS as error:
                if not begun:
                    await send_problem(send, error)
                    return
                # Do not wait for a client that does not read.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LAST_LINE_SECONDS):
                        await _send(send, error_line(error))
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            closing = getattr(self.changes, "aclose", None)
            if closing is not None:
                await closing()

    def _send_bookmark(self, send: Send, bookmark: Change) -> bool:
        """Send a bookmark without waking the stream's task, because most of thousands of streams are idle.

        Return False if the task has to handle it.
        """
        stream = self.stream
        if stream.scope.recheck is not None:
            return False
        try:
            at_once(stream.parts.auth.check_valid(stream.caller))
            at_once(_send(send, line_of(bookmark)))
        except (MandorError, Waits):
            # The token was revoked, or the client reads too slowly: the task handles both.
            return False
        return True

    async def _send_all(self, send: Send) -> None:
        plain, parts = self.stream.plain, self.stream.parts
        batch = self.first
        self.first = ()
        checked = parts.clock.monotonic()
        sender = OrderDependencySender(parts.order_dependencies) if self.stream.supplies else None
        while True:
            now = parts.clock.monotonic()
            if now - checked > CHECK_SECONDS or batch[-1].bookmark:
                # A revoked token ends its watches, too.
                checked = now
                await parts.auth.check_valid(self.stream.caller)
                if self.stream.scope.recheck is not None:
                    await self.stream.scope.recheck()
            if not plain:
                batch = await self.stream.narrowed(batch)
            for start in range(0, len(batch), CHUNK):
                part = batch[start : start + CHUNK] if len(batch) > CHUNK else batch
                lines = [change.line or line_of(change) for change in part]
                if sender is not None:
                    lines = [*await sender.lines(part), *lines]
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
    parts: ApiParts, listing: Listing, scope: ReadScope, select: Select, caller: Caller, receive: Receive, send: Send
) -> None:
    """Send `{revision}`, the objects, and `{end: count}`, without which a snapshot is incomplete."""

    async def work() -> None:
        await send(START)
        await _send(send, b'{"revision":%d}\n' % listing.revision)
        count = 0
        for start in range(0, len(listing.items), CHUNK):
            lines = [
                encode(redacted(value, caller))
                for value in listing.items[start : start + CHUNK]
                if (scope.shows is None or scope.shows(value)) and select.matches(value)
            ]
            count += len(lines)
            if lines:
                await _send_lines(send, [line + b"\n" for line in lines])
            await asyncio.sleep(0)  # a fast client never makes the stream pause
        await _send(send, b'{"end":%d}\n' % count)

    await parts.streams.run(receive, work, caller)
    await send({"type": "http.response.body", "body": b"", "more_body": False})
