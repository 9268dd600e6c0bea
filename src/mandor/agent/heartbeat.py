"""Sends heartbeats with the resource usage of the node and its instances."""

import logging
import random
from collections.abc import Awaitable, Callable

from mandor.agent.cluster_contact import ClusterContact
from mandor.agent.link import Heartbeat, Link
from mandor.errors import Forbidden, MandorError, NotFound, Unauthenticated
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.usage import InstanceUsage, NodeUsage

log = logging.getLogger(__name__)

JITTER = 0.1
"""Largest share by which an interval varies, so that nodes that started together spread out."""


class HeartbeatSender:
    """Sends heartbeats until cancelled, and joins again if the node was deleted."""

    def __init__(
        self,
        link: Link,
        contact: ClusterContact,
        usage: Callable[[], NodeUsage],
        clock: Clock,
        *,
        seconds: float,
        instances: Callable[[], Awaitable[dict[str, InstanceUsage]]],
        measured: Callable[[NodeUsage, dict[str, InstanceUsage]], None] = lambda machine, instances: None,
        answered: Callable[[str], None] = lambda result: None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`answered`: called with the result of each heartbeat, `ok` or the code of an error."""
        self._link, self._contact, self._usage, self._clock = link, contact, usage, clock
        self._seconds, self._instances, self._chance = seconds, instances, chance
        self._measured, self._answered = measured, answered
        self._backoff = Backoff(min(1.0, seconds), seconds, jitter=0.4)
        self._failures = 0

    async def run(self, pause: float = 0.0) -> None:
        while True:
            await self._clock.sleep(pause)
            pause = await self.send()

    async def send(self) -> float:
        """Send a heartbeat; return the seconds until the next one."""
        mine = self._contact.membership
        assert mine is not None, "the node joins before it sends heartbeats"
        beat = Heartbeat(cluster=mine.id, usage=self._usage(), instances=await self._instances())
        self._measured(beat.usage, beat.instances)
        sent = self._clock.monotonic()
        try:
            self._contact.check(await self._link.heartbeat(beat))
        except MandorError as error:
            return await self._failed(error)
        if self._failures:
            log.info("the control plane answers again after %d failed heartbeats", self._failures)
        self._failures = 0
        self._answered("ok")
        self._contact.answered(sent)
        return self._seconds * (1 + JITTER * (2 * self._chance() - 1))

    async def _failed(self, error: MandorError) -> float:
        self._failures += 1
        self._answered(error.code)
        if self._failures == 1 or isinstance(error, Forbidden | Unauthenticated):
            log.warning("heartbeat failed: %s", error, extra={"facts": error.facts})
        if isinstance(error, NotFound | Unauthenticated):
            await self._join_again()
        return self._backoff.pause(self._failures, chance=self._chance())

    async def _join_again(self) -> None:
        """Join again after the node or its credential was deleted, with the credential or the join token."""
        try:
            self._contact.check(await self._link.join())
        except MandorError as error:
            log.warning(
                "cannot join the cluster again: %s", error, extra={"facts": {"hint": error.hint, **error.facts}}
            )
