"""Answers that go on: how many there are, and how they end when the server or the caller goes away."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from starlette.types import Receive

from mandor.api.caller import Caller
from mandor.api.revocation import Revocation
from mandor.errors import TooMany, Unavailable


class Streams:
    """Every open stream of this server."""

    def __init__(self, most: int, most_each: int, revocation: Revocation) -> None:
        """`most_each`: of one identity. `revocation`: ends those whose token is revoked."""
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
        """Raise before the answer begins what would be too late in the middle of it."""
        if self._closing:
            raise Unavailable("the server is stopping", hint="try another server, or this one in a moment")
        if len(self._open) >= self._most:
            raise TooMany(f"{self._most} streams are open", hint="close one, or ask another server")
        if self._each[identity] >= self._most_each:
            raise TooMany(
                f"{identity} has {self._most_each} streams open", hint="close one; one watch can follow several kinds"
            )

    async def run(self, receive: Receive, work: Callable[[], Awaitable[None]], caller: Caller) -> bool:
        """Do the work until it is over, the caller goes away or the server stops; True: it came to its end.

        Raise `Unauthenticated` when the caller's token is revoked, expires or loses rights.
        """
        identity = caller.identity
        task = asyncio.current_task()
        assert task is not None
        # The work stays in the task it is in: one task less for each of thousands of streams.
        gone = asyncio.ensure_future(_disconnected(receive))
        gone.add_done_callback(lambda each: None if each.cancelled() else task.cancel("the caller went away"))
        self._open.add(task)
        self._each[identity] += 1
        try:
            async with self._revocation.guard(caller):
                await work()
        except asyncio.CancelledError:
            if not (gone.done() or self._closing):
                raise
            task.uncancel()
            return False
        finally:
            self._open.discard(task)
            self._each[identity] -= 1
            if not self._each[identity]:
                del self._each[identity]
            gone.cancel()
        return True

    def set(self) -> None:
        """The server stops: end every stream now, and begin no other."""
        self._closing = True
        for task in self._open:
            task.cancel("the server is stopping")


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
