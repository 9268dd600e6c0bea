"""Upkeep: a lease is renewed in a thread of its own, however long the event loop lets others wait."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic

from mandor.errors import MandorError

log = logging.getLogger(__name__)

CALL_SHARE = 0.3
"""Of the lease: so long one call may take. Should it hang, there is time for another at the next endpoint."""
LOST_SHARE = 0.8
"""Of the lease: who could not renew it for so long counts it as lost, before others may."""


class Upkeep:
    """A loop that is late still leads; one that has not turned for a whole lease hangs, and then others shall."""

    def __init__(self, name: str, renew: Callable[[float], bool], seconds: float, pause: float) -> None:
        """`renew` may take so many seconds, and is called in the thread; False: the lease is somebody else's."""
        self._name, self._renew = name, renew
        self._seconds, self._pause = seconds, pause
        self._stop = Event()
        self._turned = monotonic()

    async def run(self) -> None:
        """Return when the lease is lost, or could be by now. When it is cancelled, nothing is under way afterwards."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            found: Exception | None = None
            try:
                self._keep(loop)
            except Exception as error:
                found = error
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(_tell, over, found)

        self._turned = monotonic()
        Thread(target=work, name=f"lease of {self._name}", daemon=True).start()
        try:
            await asyncio.wait({over})
        finally:
            self._stop.set()
            await asyncio.wait({over})
        over.result()

    def _keep(self, loop: asyncio.AbstractEventLoop) -> None:
        tried = renewed = monotonic()
        while not self._stop.wait(max(0.0, tried + self._pause - monotonic())):
            tried = monotonic()
            if tried - self._turned >= self._seconds:
                log.error("%s: the event loop hangs: the lease is left to others", self._name)
                return
            loop.call_soon_threadsafe(self._turn)
            try:
                if not self._renew(self._seconds * CALL_SHARE):
                    return
                renewed = tried
            except MandorError as error:
                log.warning("%s: cannot renew the lease: %s", self._name, error)
                if monotonic() - renewed >= self._seconds * LOST_SHARE:
                    return

    def _turn(self) -> None:
        self._turned = monotonic()


def _tell(over: "asyncio.Future[None]", error: Exception | None) -> None:
    if over.done():
        return
    if error is not None:
        over.set_exception(error)
    else:
        over.set_result(None)
