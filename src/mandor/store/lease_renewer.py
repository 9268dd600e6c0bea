"""LeaseRenewer: renews a lease from a thread, independently of the event loop."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from time import monotonic

from mandor.errors import MandorError

log = logging.getLogger(__name__)

CALL_SHARE = 0.3
"""Share of the lease's duration that one call may take; a call that hangs leaves time for another endpoint."""
LOST_SHARE = 0.8
"""Share of the lease's duration without renewal after which the leader gives up, before it expires for others."""


class LeaseRenewer:
    """Renews the lease while the event loop runs; a loop that has not run for a whole lease counts as hung."""

    def __init__(self, name: str, renew: Callable[[float], bool], seconds: float, pause: float) -> None:
        """`renew` runs in the thread, gets a limit in seconds, and returns False if the lease is lost."""
        self._name, self._renew = name, renew
        self._seconds, self._pause = seconds, pause
        self._stop = Event()
        self._turned = monotonic()

    async def run(self) -> None:
        """Return when the lease is lost or may have expired. After cancellation no renewal is in progress."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def work() -> None:
            found: Exception | None = None
            try:
                self._keep(loop)
            except Exception as error:
                found = error
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_call_on_loop, over, found)

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
                log.error("%s: the event loop hangs: stopped renewing the lease", self._name)
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


def _call_on_loop(over: "asyncio.Future[None]", error: Exception | None) -> None:
    if over.done():
        return
    if error is not None:
        over.set_exception(error)
    else:
        over.set_result(None)
