"""The node's own object: reads its spec, and writes its status when capacity, facts or engines change."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from mandor.agent.feed import Source
from mandor.agent.fingerprint import capabilities, images, local_address, node_status
from mandor.agent.foreign_ports import ForeignPorts, PortInUse, no_port_in_use, server_ports
from mandor.agent.machine import Machine
from mandor.agent.networks import without_networks
from mandor.agent.order import Order
from mandor.agent.ports import unchosen
from mandor.agent.settings import AgentSettings
from mandor.agent.usage_throttle import UsageThrottle
from mandor.engines.base import Engine
from mandor.errors import Conflict, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.model.log_sink import SinkHealth
from mandor.model.meta import Key, Object
from mandor.model.node import Capabilities, Node, NodeSpec
from mandor.model.resources import Resources
from mandor.store.base import Change, Put, Store

log = logging.getLogger(__name__)

TRIES_MOST = 5
LEAST_SECONDS = 1.0
"""Shortest interval in seconds between two checks of the machine."""


class NodeKeeper:
    """Reads and writes the node's own object."""

    def __init__(
        self,
        settings: AgentSettings,
        store: Store,
        engines: Mapping[str, Engine],
        clock: Clock,
        *,
        machine: Machine,
        extra: Callable[[], Mapping[str, str]],
        changed: Callable[[], None],
        join: Callable[[], Awaitable[None]],
        locate: Callable[[], str] | None = None,
        port_in_use: PortInUse = no_port_in_use,
        engine_changed: Callable[[Node, str], None] = lambda node, engine: None,
    ) -> None:
        """`engine_changed`: called with the name of an engine that went down or came up."""
        self._settings, self._store, self._engines, self._clock = settings, store, engines, clock
        self._extra, self._changed, self._join, self._engine_changed = extra, changed, join, engine_changed
        self._machine = machine
        self._locate = locate or self._find_address
        self._node: Node | None = None
        self._news = asyncio.Event()
        self.engines: dict[str, Capabilities] = {}
        self.images: dict[str, int] = {}
        self.capacity = settings.capacity or Resources()
        self._usage = UsageThrottle(clock)
        self._foreign_ports = ForeignPorts(port_in_use, clock, server_ports(settings.servers))
        self.address = settings.address
        self.with_networks: Callable[[Mapping[str, Capabilities]], dict[str, Capabilities]] = without_networks
        """Adds the networks that the units of each engine can be attached to."""
        self.pressure: Callable[[], tuple[str, ...]] = tuple
        """Returns the resources that the node is short of."""
        self.log_sinks: Callable[[], Mapping[str, SinkHealth]] = dict
        """Returns the health of each log sink on this node."""

    @property
    def spec(self) -> NodeSpec:
        return self._node.spec if self._node is not None else NodeSpec()

    @property
    def value(self) -> Node | None:
        """The object as last read; None: not read yet."""
        return self._node

    @property
    def zone(self) -> str:
        """Zone of the node by its label; empty: none, or the object was not read yet."""
        return self._node.meta.labels.get("zone", "") if self._node is not None else ""

    @property
    def allocatable(self) -> Resources:
        return self.capacity - self.spec.reserved

    async def look(self) -> None:
        """Read the machine and its engines; the store is not used."""
        self.engines = self.with_networks(await capabilities(self._engines, self.engines))
        up = [name for name, each in self.engines.items() if each.up]
        self.images = await images(self._engines[name] for name in up)
        self.capacity = self._settings.has(self._machine.capacity())
        self._foreign_ports.recheck()
        self._find_new_address()
        self._changed()

    async def refresh(self) -> None:
        """Read the machine and write what has changed."""
        await self.look()
        await self.write()

    def measured(self, used: Resources, instances: Iterable[str]) -> None:
        """Take the usage measured at a heartbeat; it is written only if it has changed enough."""
        stored = self._node.status.usage if self._node is not None else None
        if self._usage.measured(used, self.capacity, instances, stored=stored):
            self.wake()

    def taken_ports(self, order: Order) -> str:
        """Return why the instance cannot have its node ports; empty: it can."""
        if missing := unchosen(order):
            return f"the scheduler chose no node port for its port {missing}"
        why = self._foreign_ports.taken(order)
        if why:
            self.wake()
        return why

    def port_taken(self, order: Order, port: int) -> None:
        """Record that an engine found the port in use by another program."""
        self._foreign_ports.report(order, port)
        self.wake()

    def wake(self) -> None:
        """Update the object soon: an engine came or went, or an instance is held."""
        self._news.set()

    async def run(self) -> None:
        """Keep the stored status up to date; `look` is called once before."""
        failures = 0
        while True:
            self._news.clear()
            try:
                await self.write()
                failures = 0
                pause = self._settings.fingerprint_seconds
            except MandorError as error:
                failures += 1
                pause = Backoff(1, self._settings.fingerprint_seconds, jitter=0.3).pause(failures)
                log.warning("cannot write the node's status: %s", error, extra={"facts": error.facts})
            await self._clock.sleep(min(pause, LEAST_SECONDS))
            await wait_event(self._clock, pause - LEAST_SECONDS, self._news)
            await self.look()

    async def write(self) -> None:
        """Write the status if it has changed; raise `Conflict` after several lost races."""
        for _ in range(TRIES_MOST):
            node = self._node or await self._read()
            if node is None:
                await self._join()  # The node was deleted, or the store replaced: join again.
                continue
            if self._find_new_address():
                self._changed()
            status = node_status(
                node.status,
                address=self.address,
                has=self.capacity,
                engines=self.engines,
                images=self.images,
                ports=self._foreign_ports.within(self._settings.ports),
                usage=self._usage.reported,
                pressure=self.pressure(),
                facts={**self._machine.facts(), **self._settings.facts, **self._extra()},
                log_sinks=self.log_sinks(),
            )
            if status == node.status:
                return
            try:
                value = node.changed(status=status)
                revision = await self._store.commit(Put(value))
                self._take(value.stamped(version=revision))
            except Conflict:
                self._node = await self._read()
            else:
                for name, engine in status.engines.items():
                    known = node.status.engines.get(name)
                    if known is not None and known.up != engine.up:
                        self._engine_changed(value, name)
                return
        raise Conflict(f"the node's object changed or disappeared {TRIES_MOST} times in a row")

    async def _read(self) -> Node | None:
        found = await self._store.get(Key(Node.kind, "", self._settings.name))
        return found if isinstance(found, Node) else None

    def _take(self, node: Node) -> None:
        if self._node is None or self._node.meta.uid != node.meta.uid or self._node.meta.version <= node.meta.version:
            before, self._node = self.spec, node
            if before != node.spec:
                self._changed()

    def _find_new_address(self) -> bool:
        """Read the machine's address and return whether it has changed; without a network the last one is kept."""
        before, self.address = self.address, self._locate() or self.address
        return self.address != before

    def _find_address(self) -> str:
        return self._settings.address or local_address(next(iter(self._settings.servers), "127.0.0.1"))

    # Reader of the feed.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self._node = None
        for item in items:
            self.changed(Change(source.revision, None, item), source)

    def changed(self, change: Change, source: Source) -> None:
        if isinstance(change.after, Node) and change.after.meta.name == self._settings.name:
            self._take(change.after)
        elif change.after is None:
            self._node = None

    def lost(self, error: MandorError, failures: int) -> None:
        log.debug("cannot watch the node's object: %s", error)
