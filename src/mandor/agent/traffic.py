"""Keeps the data path of this node up to date with services and their endpoints."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mandor.agent.external_checks import ExternalChecks
from mandor.agent.fingerprint import machine_address
from mandor.agent.namespace_watch import NamespaceWatch
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.lib.loopback import is_loopback
from mandor.network.addresses import LOOPBACK, VirtualRange
from mandor.network.base import Balancer, Frontend, FrontendKey, Traffic
from mandor.network.endpoints import Viewpoint, frontends, seen_instance

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.02
"""Seconds within which changes are combined into one update."""
BACKOFF = Backoff(0.5, 30, jitter=0.2)


@dataclass(frozen=True, slots=True)
class Balancing:
    """A balancer with the virtual addresses that it balances."""

    balancer: Balancer
    virtual: VirtualRange
    marker: Path
    """File that exists once the balancer has been used: an earlier agent process may have left frontends."""


class TrafficKeeper:
    """Applies the frontends of all services of the node's namespaces to the balancer, after each change."""

    def __init__(
        self,
        watch: NamespaceWatch,
        balancing: Balancing,
        clock: Clock,
        checks: ExternalChecks,
        *,
        address: Callable[[], str],
        zone: Callable[[], str] = lambda: "",
        networks: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        self._watch, self._balancing, self._clock = watch, balancing, clock
        self._address, self._zone, self._networks = address, zone, networks
        self.checks = checks
        self._news = asyncio.Event()
        self._applied: Sequence[Frontend] | None = None
        """Frontends in effect; None: unknown."""
        self.applied: dict[str, int] = {}
        """Revision in effect by namespace, of namespaces with a balanced service."""
        self._listeners: list[Callable[[], None]] = []
        watch.listen(self._news.set)
        checks.listen(self._news.set)

    def listen(self, applied: Callable[[], None]) -> None:
        """Call `applied` after each change of what is in effect."""
        self._listeners.append(applied)

    @property
    def frontends(self) -> Sequence[Frontend]:
        """Frontends in effect."""
        return self._applied or ()

    async def traffic(self) -> Mapping[FrontendKey, Traffic]:
        """Return the counters of the frontends in effect."""
        if not self._applied:
            return {}
        known = {each.key for each in self._applied}
        return {key: each for key, each in (await self._balancing.balancer.traffic()).items() if key in known}

    async def run(self) -> None:
        """Follow changes until cancelled; the data path stays in effect."""
        failures = 0
        try:
            while True:
                self._news.clear()
                try:
                    await self._update()
                    failures = 0
                except (MandorError, OSError) as error:
                    failures += 1
                    log.warning("cannot update the services of this node: %s", error)
                    await self._clock.sleep(BACKOFF.pause(failures))
                    continue
                await wait_event(self._clock, None, self._news)
                await self._clock.sleep(PAUSE_SECONDS)
        finally:
            await self._balancing.balancer.close()

    async def _update(self) -> None:
        if self._applied is None and not self._watch.settled:
            return  # What an earlier agent process applied stays in effect until all services are known.
        revisions = self._watch.revisions()
        wanted = self._wanted()
        if self._applied is None and not self._begins(wanted):
            return
        if wanted != self._applied:
            await self._balancing.balancer.apply(wanted)
            self._applied = wanted
        balanced = {each.key.namespace for each in wanted}
        self.applied = {name: revision for name, revision in revisions.items() if name in balanced}
        for listener in self._listeners:
            listener()

    def _begins(self, wanted: Sequence[Frontend]) -> bool:
        """Return whether the balancer is needed: there are services, or an earlier agent process left some."""
        marker = self._balancing.marker
        if wanted and not marker.exists():
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()
        return marker.exists()

    def _wanted(self) -> list[Frontend]:
        address, virtual = self._address(), self._balancing.virtual
        # A packet filter cannot send packets from another network to a loopback address.
        machine = machine_address() if virtual != LOOPBACK and is_loopback(address) else ""
        view = Viewpoint(self._watch.node, address, self._zone(), machine, self._networks())
        instances = [seen_instance(*each, view) for each in self._watch.instances()]
        seen = [each for each in instances if each is not None]
        services = sorted(self._watch.services(), key=lambda each: each.key)
        self.checks.sync(services)
        return frontends(services, seen, view, virtual, failing=self.checks.excluded())
