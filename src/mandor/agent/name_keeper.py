"""Keeps the name server of this node up to date with services and instances."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mandor.agent.fingerprint import machine_address
from mandor.agent.namespace_watch import NamespaceWatch
from mandor.engines.base import Resolver
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.lib.loopback import is_loopback
from mandor.network.addresses import LOOPBACK, VirtualRange
from mandor.network.base import Names, NameTable
from mandor.network.endpoints import Viewpoint, seen_instance
from mandor.network.names import clients_of, name_table

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.05
"""Seconds within which changes are combined into one table."""
BACKOFF = Backoff(0.5, 30, jitter=0.2)
ZONE = "mandor"


@dataclass(frozen=True, slots=True)
class NameServer:
    """The driver of a name server."""

    names: Names
    folder: Path
    """Folder of the server: it exists once the server was used."""


class NameKeeper:
    """Starts the name server for the first instance of the node, and applies the table of names after each change.

    The table of an earlier agent process stays in effect until all services are known.
    """

    def __init__(
        self,
        watch: NamespaceWatch,
        server: NameServer,
        clock: Clock,
        *,
        address: Callable[[], str],
        zone: Callable[[], str],
        networks: Callable[[], frozenset[str]] = frozenset,
        virtual: VirtualRange | None,
    ) -> None:
        """`virtual`: virtual addresses that this node balances; None: it balances none."""
        self._watch, self._server, self._clock = watch, server, clock
        self._address, self._zone, self._networks = address, zone, networks
        # Containers do not reach the relay on the node's loopback addresses.
        self._virtual = virtual if virtual != LOOPBACK else None
        self._lock = asyncio.Lock()
        self._found = ""
        """Address of the server; empty: it has not been started."""
        self._failures, self._not_before = 0, 0.0
        self._applied: NameTable | None = None
        """Table in effect; None: not known."""
        self._news = asyncio.Event()
        watch.listen(self._news.set)

    async def resolver(self, namespace: str) -> Resolver | None:
        """Return the resolver of instances of a namespace; None: the server cannot be started now."""
        if not await self._open():
            return None
        self._news.set()
        return Resolver(servers=(self._found,), search=(f"{namespace}.{ZONE}",))

    async def run(self) -> None:
        """Follow changes until cancelled; the server goes on."""
        failures = 0
        try:
            while True:
                self._news.clear()
                try:
                    await self._update()
                    failures = 0
                except (MandorError, OSError) as error:
                    failures += 1
                    self._applied = None
                    log.warning("cannot update the name server of this node: %s", error)
                    await self._clock.sleep(BACKOFF.pause(failures))
                    continue
                await wait_event(self._clock, None, self._news)
                await self._clock.sleep(PAUSE_SECONDS)
        finally:
            await self._server.names.close()

    async def _open(self) -> bool:
        """Start the server, if it does not run; after a failure, not before a pause has passed."""
        async with self._lock:
            now = self._clock.monotonic()
            if self._found or now < self._not_before:
                return bool(self._found)
            try:
                self._found = await self._server.names.open()
            except (MandorError, OSError) as error:
                self._failures += 1
                self._not_before = now + BACKOFF.pause(self._failures)
                log.warning("this node has no name server, instances get hosts files: %s", error)
                return False
            self._failures = 0
            log.info("the name server of this node answers at %s", self._found)
            return True

    async def _update(self) -> None:
        if not self._found and not (self._server.folder.exists() and await self._open()):
            return
        if self._applied is None and not self._watch.settled:
            return  # The table of an earlier agent process stays in effect until all services are known.
        wanted = self._wanted()
        if wanted != self._applied:
            await self._server.names.apply(wanted)
            self._applied = wanted

    def _wanted(self) -> NameTable:
        address = self._address()
        machine = machine_address() if is_loopback(address) else ""
        view = Viewpoint(self._watch.node, address, self._zone(), machine, self._networks())
        instances = [seen_instance(*each, view) for each in self._watch.instances()]
        seen = [each for each in instances if each is not None]
        local = [(each.order.instance.meta.namespace, each.status) for each in self._watch.local_instances()]
        return name_table(self._watch.services(), seen, clients_of(local), view, self._virtual)
