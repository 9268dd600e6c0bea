"""Streams: limits the streaming responses of a server, and ends them with the server, the client or its token."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.types import Receive

from mandor.api.caller import Caller
from mandor.api.revocation import Revocation
from mandor.errors import TooMany, Unavailable


class Streams:
    """The open streams of this server."""

    def __init__(self, most: int, most_each: int, revocation: Revocation) -> None:
        """`most`: open streams in all. `most_each`: open streams of one identity."""
        self._revocation = revocation
        self._most, self._most_each = most, most_each
        self._each: Counter[str] = Counter()
        self._open: set[asyncio.Task[None]] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def closing(self) -> bool:
        return self._closing

    def check(self, identity: str = "") -> None:
        """Raise `Unavailable` or `TooMany` if no stream can be started; called before the response begins."""
        if self._closing:
            raise Unavailable("the server is stopping", hint="use another server, or try again in a few seconds")
        if len(self._open) >= self._most:
            raise TooMany(f"{self._most} streams are open", hint="close one, or use another server")
        if self._each[identity] >= self._most_each:
            raise TooMany(
                f"{identity} has {self._most_each} streams open", hint="close one; one watch can follow several kinds"
            )

    async def run(self, receive: Receive, work: Callable[[], Awaitable[None]], caller: Caller) -> bool:
        """Run the work until it ends, the client disconnects or the server stops; return True if it ended by itself.

        Raise `Unauthenticated` when the caller's token is revoked, expires or loses rights.
        """
        identity = caller.identity
        task = asyncio.current_task()
        assert task is not None
        # The work stays in the current task: one task less for each of thousands of streams.
        disconnected = asyncio.ensure_future(_disconnected(receive))
        disconnected.add_done_callback(
            lambda each: None if each.cancelled() else task.cancel("the client disconnected")
        )
        self._open.add(task)
        self._each[identity] += 1
        try:
            async with self._revocation.guard(caller):
                await work()
        except asyncio.CancelledError:
            if not (disconnected.done() or self._closing):
                raise
            task.uncancel()
            return False
        finally:
            self._open.discard(task)
            self._each[identity] -= 1
            if not self._each[identity]:
                del self._each[identity]
            disconnected.cancel()
        return True

    def close(self) -> None:
        """End all streams and refuse new ones, because the server stops."""
        self._closing = True
        for task in self._open:
            task.cancel("the server is stopping")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
