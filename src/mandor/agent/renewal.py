"""Renews the node's credential and certificate in the background."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from mandor.agent.link import Link
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.lib.metrics import Counts
from mandor.model.node import Renewal

log = logging.getLogger(__name__)


class Keeper(ABC):
    """Renews one credential or certificate of the node when it is due, and retries with growing delays."""

    subject: ClassVar[str]
    """Name of the renewed thing in log lines."""
    backoff: ClassVar[Backoff]
    """Delays between failed attempts."""

    def __init__(self, link: Link, clock: Clock, renewals: Counts) -> None:
        """`renewals`: counts renewals by result."""
        self._link, self._clock, self._renewals = link, clock, renewals
        self._news = asyncio.Event()

    @abstractmethod
    def seconds_left(self) -> float | None:
        """Return the seconds until the next renewal; 0 or less: now; None: at no known time."""

    @abstractmethod
    async def renew(self) -> None: ...

    def wake(self) -> None:
        """Compute the time of the renewal again: the node has joined, or its object may request a renewal."""
        self._news.set()

    async def run(self) -> None:
        failures = 0
        while True:
            self._news.clear()
            left = self.seconds_left()
            if left is None or left > 0:
                await wait_event(self._clock, left, self._news)
                continue
            try:
                await self.renew()
            except (MandorError, OSError) as error:
                failures += 1
                self._renewals["failed",] += 1
                log.warning("cannot renew this node's %s: %s; retrying", self.subject, error)
                await self._clock.sleep(self.backoff.pause(failures))
            else:
                failures = 0
                self._renewals["ok",] += 1
                log.info("renewed this node's %s", self.subject)

    def _seconds_until(self, at: float | None) -> float | None:
        return None if at is None else at - self._clock.monotonic()


class CredentialKeeper(Keeper):
    """Renews the credential when it is due, or when the node's object requests it."""

    subject = "credential"
    backoff = Backoff(1, 600, jitter=0.3)

    def __init__(self, link: Link, clock: Clock, wanted: Callable[[], Renewal | None], renewals: Counts) -> None:
        """`wanted`: returns the renewal that the node's object requests. `renewals`: counts renewals by result."""
        super().__init__(link, clock, renewals)
        self._wanted = wanted
        self._done: Renewal | None = None
        """The last request that was fulfilled: the object may still contain it for a moment."""

    def seconds_left(self) -> float | None:
        if self._link.renewing or self._wanted() not in (None, self._done):
            return 0.0
        return self._seconds_until(self._link.renew_at)

    async def renew(self) -> None:
        order = self._wanted()
        await self._link.renew_credential()
        self._done = order


class CertificateKeeper(Keeper):
    """Renews the certificate at two thirds of its lifetime."""

    subject = "certificate"
    backoff = Backoff(1, 300, jitter=0.3)

    def seconds_left(self) -> float | None:
        return self._seconds_until(self._link.certify_at)

    async def renew(self) -> None:
        await self._link.renew_certificate()
