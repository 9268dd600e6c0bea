"""Renews the node's credential and certificate in the background."""

import asyncio
import logging
from collections.abc import Callable

from mandor.agent.link import Link
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.lib.metrics import Counts
from mandor.model.node import Renewal

log = logging.getLogger(__name__)

CREDENTIAL_BACKOFF = Backoff(1, 600, jitter=0.3)
CERTIFICATE_BACKOFF = Backoff(1, 300, jitter=0.3)


class CredentialKeeper:
    """Renews the credential when it is due, or when the node's object requests it."""

    def __init__(self, link: Link, clock: Clock, wanted: Callable[[], Renewal | None], renewals: Counts) -> None:
        """`wanted`: returns the renewal that the node's object requests. `renewals`: counts renewals by result."""
        self._link, self._clock, self._wanted, self._renewals = link, clock, wanted, renewals
        self._done: Renewal | None = None
        """The last request that was fulfilled: the object may still contain it for a moment."""
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Check again: the node has joined, or its object may request a renewal."""
        self._news.set()

    async def run(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            order, left = self._wanted(), self._seconds_left()
            if not self._link.renewing and order in (None, self._done) and (left is None or left > 0):
                await wait_event(self._clock, left, self._news)
                continue
            try:
                await self._link.renew_credential()
            except (MandorError, OSError) as error:
                failures += 1
                self._renewals["failed",] += 1
                log.warning("cannot renew this node's credential: %s; retrying", error)
                await self._clock.sleep(CREDENTIAL_BACKOFF.pause(failures))
            else:
                failures, self._done = 0, order
                self._renewals["ok",] += 1
                log.info("renewed this node's credential")

    def _seconds_left(self) -> float | None:
        at = self._link.renew_at
        return None if at is None else at - self._clock.monotonic()


class CertificateKeeper:
    """Renews the certificate at two thirds of its lifetime."""

    def __init__(self, link: Link, clock: Clock, renewals: Counts) -> None:
        """`renewals`: counts renewals by result."""
        self._link, self._clock, self._renewals = link, clock, renewals
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Check again: the node has joined, which may have changed the time of the renewal."""
        self._news.set()

    async def run(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            at = self._link.certify_at
            left = None if at is None else at - self._clock.monotonic()
            if left is None or left > 0:
                await wait_event(self._clock, left, self._news)
                continue
            try:
                await self._link.renew_certificate()
            except (MandorError, OSError) as error:
                failures += 1
                self._renewals["failed",] += 1
                log.warning("cannot renew this node's certificate: %s; retrying", error)
                await self._clock.sleep(CERTIFICATE_BACKOFF.pause(failures))
            else:
                failures = 0
                self._renewals["ok",] += 1
                log.info("renewed this node's certificate")
