"""Renews the node's credential when its object says so, while everything else goes on."""

import asyncio
import logging
from collections.abc import Callable

from mandor.agent.link import Link
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.node import Renewal

log = logging.getLogger(__name__)

BACKOFF = Backoff(1, 60, jitter=0.3)


class CredentialKeeper:
    def __init__(self, link: Link, clock: Clock, wanted: Callable[[], Renewal | None]) -> None:
        """`wanted`: what the node's object says."""
        self._link, self._clock, self._wanted = link, clock, wanted
        self._done: Renewal | None = None
        """The last order that was carried out: the object may still show it for a moment."""
        self._news = asyncio.Event()

    def poke(self) -> None:
        """The node's object may say so now."""
        self._news.set()

    async def run(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            order = self._wanted()
            if not self._link.renewing and (order is None or order == self._done):
                await self._news.wait()
                continue
            try:
                await self._link.renew_credential()
            except (MandorError, OSError) as error:
                failures += 1
                log.warning("the credential of this node is not renewed yet: %s", error)
                await self._clock.sleep(BACKOFF.pause(failures))
            else:
                failures, self._done = 0, order
                log.info("this node has another credential")
