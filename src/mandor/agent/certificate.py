"""Renews the node's certificate at two thirds of its life, while everything else goes on."""

import asyncio
import logging

from mandor.agent.link import Link
from mandor.agent.wait import doze
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.metrics import Counts

log = logging.getLogger(__name__)

BACKOFF = Backoff(1, 300, jitter=0.3)


class CertificateKeeper:
    def __init__(self, link: Link, clock: Clock, renewals: Counts) -> None:
        """`renewals`: counted by result."""
        self._link, self._clock, self._renewals = link, clock, renewals
        self._news = asyncio.Event()

    def poke(self) -> None:
        """The node has joined: there may be another time to renew at."""
        self._news.set()

    async def run(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            at = self._link.certify_at
            left = None if at is None else at - self._clock.monotonic()
            if left is None or left > 0:
                await doze(self._clock, left, self._news)
                continue
            try:
                await self._link.renew_certificate()
            except (MandorError, OSError) as error:
                failures += 1
                self._renewals["failed",] += 1
                log.warning("the certificate of this node is not renewed yet: %s", error)
                await self._clock.sleep(BACKOFF.pause(failures))
            else:
                failures = 0
                self._renewals["ok",] += 1
                log.info("this node has another certificate")
