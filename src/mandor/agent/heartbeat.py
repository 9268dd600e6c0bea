"""Says every few seconds that this node lives, and how busy it is."""

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
"""Nodes that started together do not beat together for ever."""


class HeartbeatSender:
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
        known: Callable[[], dict[str, InstanceUsage] | None] = lambda: None,
        nod: Callable[[Heartbeat], bool] | None = None,
    ) -> None:
        """`answered`: told how each heartbeat ended, `ok` or the code of an error. `known`: what `instances` would
        answer, where nobody has to be asked. `nod`: the same heartbeat once more, where that takes no waiting; True:
        it was answered as the one before."""
        self._link, self._contact, self._usage, self._clock = link, contact, usage, clock
        self._seconds, self._instances, self._chance = seconds, instances, chance
        self._measured, self._answered = measured, answered
        self._backoff = Backoff(min(1.0, seconds), seconds, jitter=0.4)
        self._failures = 0
        self._known, self._nod = known, nod
        self._last: Heartbeat | None = None
        """What was answered last, if it can be said again without a wait."""

    async def run(self, pause: float = 0.0) -> None:
        while True:
            await self._clock.sleep_on(pause, self._beat_again)
            pause = await self.beat()

    def _beat_again(self) -> float:
        """A heartbeat that is the same as the last, where nobody has to wait for it; how long to wait before the next.
        0: it takes a whole one."""
        beat = self._last
        if beat is None or self._nod is None or self._usage() is not beat.usage or self._known() is not beat.instances:
            return 0.0
        self._measured(beat.usage, beat.instances)
        if not self._nod(beat):
            return 0.0
        return self._heard(self._clock.monotonic())

    async def beat(self) -> float:
        """One heartbeat; how long to wait before the next."""
        mine = self._contact.membership
        assert mine is not None, "the heart beats once the node has joined"
        beat = Heartbeat(cluster=mine.id, usage=self._usage(), instances=await self._instances())
        self._measured(beat.usage, beat.instances)
        sent, self._last = self._clock.monotonic(), None
        try:
            self._contact.check(await self._link.heartbeat(beat))
        except MandorError as error:
            return await self._missed(error)
        if self._failures:
            log.info("the control plane answers again after %d heartbeats without an answer", self._failures)
        self._failures = 0
        if self._nod is not None:
            self._last = beat
        return self._heard(sent)

    def _heard(self, sent: float) -> float:
        self._answered("ok")
        self._contact.heard(sent)
        return self._seconds * (1 + JITTER * (2 * self._chance() - 1))

    async def _missed(self, error: MandorError) -> float:
        self._failures += 1
        self._answered(error.code)
        if self._failures == 1 or isinstance(error, Forbidden | Unauthenticated):
            log.warning("no answer to a heartbeat: %s", error, extra={"facts": error.facts})
        if isinstance(error, NotFound | Unauthenticated):
            await self._join_again()
        return self._backoff.pause(self._failures, chance=self._chance())

    async def _join_again(self) -> None:
        """The node was deleted, or its credential was: the join token or the credential may still do."""
        try:
            self._contact.check(await self._link.join())
        except MandorError as error:
            log.warning("joining again failed: %s", error, extra={"facts": {"hint": error.hint, **error.facts}})
