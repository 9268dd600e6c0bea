"""Delays the stop of instances until no data path of the cluster sends them new connections.

Each agent reports the revision of services that its data path has applied. The agent of an instance with a stop order
sends the stop signal when every live node has applied the revision of the order, or when the longest `drain` of the
instance's services has passed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mandor.agent.link import Link
from mandor.agent.namespace_watch import NamespaceWatch
from mandor.agent.order import Order
from mandor.agent.traffic import TrafficKeeper
from mandor.errors import MandorError
from mandor.lib.clock import Clock, wait_event
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.service import Service

log = logging.getLogger(__name__)

REPORT_SECONDS = 10.0
"""Seconds between reports while nothing changes; a server that was restarted learns from them."""
RETRY_SECONDS = 0.5
"""Seconds until a request that failed is repeated."""
PAUSE_SECONDS = 0.02
"""Seconds within which changes are combined into one report; also the shortest time between two requests."""


@dataclass(slots=True)
class _Drain:
    """An instance of this node that waits for the data paths."""

    namespace: str
    revision: int
    """Revision of the stop order; data paths that have applied it send no new connections."""
    deadline: float
    """Monotonic time of the stop signal, even if a data path has not answered."""
    done: bool = False


class Drains:
    """Reports what this node's data path has applied, and follows what those of all nodes have."""

    def __init__(
        self,
        watch: NamespaceWatch,
        traffic: TrafficKeeper | None,
        link: Link,
        clock: Clock,
        wake: Callable[[str], None],
    ) -> None:
        """`traffic`: None: this node balances no services. `wake`: called with the uid of a drained instance."""
        self._watch, self._traffic, self._link, self._clock, self._wake = watch, traffic, link, clock, wake
        self._open: dict[str, _Drain] = {}
        self._reported: Mapping[str, int] = {}
        self._reported_at = float("-inf")
        self._news, self._opened = asyncio.Event(), asyncio.Event()
        if traffic is not None:
            traffic.listen(self._news.set)

    def drained(self, order: Order, status: InstanceStatus) -> bool:
        """Return whether the instance with a stop order gets no new connections of services any more."""
        known = self._open.get(order.uid)
        if known is None:
            seconds = self._longest_drain(order.instance) if status.ports else 0.0
            if not seconds:
                return True
            deadline = self._clock.monotonic() + seconds
            known = _Drain(order.instance.meta.namespace, order.instance.meta.version, deadline)
            self._open[order.uid] = known
            self._news.set()
            self._opened.set()
        return known.done

    def _longest_drain(self, instance: Instance) -> float:
        services = self._watch.services(instance.meta.namespace)
        return max((float(each.spec.drain) for each in services if is_behind(each, instance)), default=0.0)

    async def run(self) -> None:
        """Report, and wait for other nodes, until cancelled."""
        async with Background() as tasks:
            tasks.start(self._follow(), "data paths of other nodes")
            while True:
                self._news.clear()
                self._forget_ended()
                if self._must_report():
                    await self._report()
                self._finish_late()
                await wait_event(self._clock, self._seconds_left(), self._news)
                await self._clock.sleep(PAUSE_SECONDS)

    def _undone(self) -> list[_Drain]:
        return [each for each in self._open.values() if not each.done]

    def _forget_ended(self) -> None:
        uids = {each.order.uid for each in self._watch.local_instances()}
        for uid in [uid for uid in self._open if uid not in uids]:
            del self._open[uid]

    @property
    def _applied(self) -> Mapping[str, int]:
        return self._traffic.applied if self._traffic is not None else {}

    def _must_report(self) -> bool:
        """Return whether a node waits for a report of this one, or ten seconds have passed."""
        applied, reported = self._applied, self._reported
        if applied.keys() != reported.keys():
            return True
        if not applied:
            return False
        stopping = {
            instance.meta.namespace
            for instance, status in self._watch.instances()
            if instance.spec.stop is not None and not status.phase.over
        }
        due = self._clock.monotonic() - self._reported_at >= REPORT_SECONDS
        return due or any(applied[name] != reported[name] for name in stopping & applied.keys())

    async def _report(self) -> None:
        applied = dict(self._applied)
        try:
            await self._link.report_applied(applied)
        except MandorError as error:
            log.debug("cannot report the applied services: %s", error)
            self._clock.alarm(RETRY_SECONDS, self._news.set)
            return
        self._reported, self._reported_at = applied, self._clock.monotonic()

    def _seconds_left(self) -> float:
        """Return the seconds until the next report or the end of a drain."""
        now = self._clock.monotonic()
        return min([REPORT_SECONDS, *(each.deadline - now for each in self._undone())])

    async def _follow(self) -> None:
        """Wait for the data paths of all nodes while an instance drains."""
        while True:
            self._opened.clear()
            asks: dict[str, int] = {}
            for each in self._undone():
                asks[each.namespace] = min(each.revision, asks.get(each.namespace, each.revision))
            if not asks:
                await self._opened.wait()
                continue
            try:
                answer = await self._link.wait_applied(asks)
            except MandorError as error:
                log.debug("cannot read what other nodes have applied: %s", error)
                await self._clock.sleep(RETRY_SECONDS)
                continue
            for uid, drain in self._open.items():
                if answer.complete and answer.lowest.get(drain.namespace, drain.revision) >= drain.revision:
                    self._finish(uid, drain)
            await self._clock.sleep(PAUSE_SECONDS)

    def _finish_late(self) -> None:
        for uid, drain in self._open.items():
            if not drain.done and self._clock.monotonic() >= drain.deadline:
                log.warning("instance %s is stopped although not every node has stopped sending it connections", uid)
                self._finish(uid, drain)

    def _finish(self, uid: str, drain: _Drain) -> None:
        if not drain.done:
            drain.done = True
            self._wake(uid)


def is_behind(service: Service, instance: Instance) -> bool:
    """Return whether the instance receives traffic of the service when it is ready."""
    spec = instance.spec
    return service.meta.namespace == instance.meta.namespace and any(
        each.workload == spec.workload and each.group in {"", spec.group} for each in service.spec.to
    )
