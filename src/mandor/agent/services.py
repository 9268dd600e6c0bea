"""Parts of the agent that the workers of its instances share."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from mandor.agent.cluster_contact import ClusterContact
from mandor.agent.discovery import Discovery
from mandor.agent.drain import Drains
from mandor.agent.fetch import Fetch
from mandor.agent.hosts_files import HostsFiles
from mandor.agent.identity import IdentityKeeper
from mandor.agent.live_files import LiveFileKeeper
from mandor.agent.metrics import AgentMetrics
from mandor.agent.name_keeper import NameKeeper
from mandor.agent.namespace_watch import NamespaceWatch
from mandor.agent.networks import NetworkKeeper
from mandor.agent.order import Entry, Order
from mandor.agent.probes import RunProbe
from mandor.agent.resource_admission import AdmissionResult
from mandor.agent.starts import ConcurrencyLimit
from mandor.agent.tracing import Tracing
from mandor.agent.traffic import TrafficKeeper
from mandor.agent.vault import Vault
from mandor.agent.volumes import VolumeKeeper
from mandor.engines.base import Unit
from mandor.lib.clock import Clock
from mandor.model.instance import InstanceStatus


@dataclass(slots=True, kw_only=True)
class AgentServices:
    """Time, limits and telemetry of the agent."""

    clock: Clock
    contact: ClusterContact
    starts: ConcurrencyLimit
    metrics: AgentMetrics
    run_probe: RunProbe
    tracing: Tracing | None
    """None: no spans are recorded."""
    quick_seconds: float
    """Longest wait in seconds for a newer restart policy before a restart is decided."""
    otlp: str
    """Address of the OTLP receiver that tasks get; empty: none."""
    finish_log: Callable[[Unit], Awaitable[None]]
    """Waits until the log of a unit has been read, before the unit is removed."""


class NodePorts(Protocol):
    """The address and ports of the node."""

    address: str

    @property
    def zone(self) -> str:
        """Zone of the node; empty: none."""

    def taken_ports(self, order: Order) -> str:
        """Return why the instance cannot have its node ports; empty: it can."""

    def port_taken(self, order: Order, port: int) -> None:
        """Record that an engine found the port in use by another program."""


class InstanceNames(NamedTuple):
    """The parts with which instances find services and other instances."""

    watch: NamespaceWatch
    hosts_files: HostsFiles
    traffic: TrafficKeeper | None
    """None: the node balances no services."""
    drains: Drains
    name_server: NameKeeper | None
    """None: the node has no name server."""

    async def discovery(self, order: Order) -> Discovery:
        """Return the hosts file, the variables and the resolver for an instance that is about to start."""
        found = await self.hosts_files.discovery(order)
        if self.name_server is None:
            return found
        return found._replace(resolver=await self.name_server.resolver(order.instance.meta.namespace))


@dataclass(slots=True, kw_only=True)
class InstanceResources:
    """Sources of what an instance needs to run besides its order."""

    fetch: Fetch
    vault: Vault
    identities: IdentityKeeper
    volumes: VolumeKeeper
    names: InstanceNames | None
    """None: instances do not find each other by name on this node."""
    networks: NetworkKeeper | None
    """None: the node has no networks that span nodes."""
    ports: NodePorts
    live_files: LiveFileKeeper | None
    """Replaces files of running tasks; None: the machine is simulated and has no files."""


class Supervisor(Protocol):
    """The owner of the workers, as each of them uses it."""

    @property
    def settled(self) -> bool:
        """Whether the first list of orders has arrived, or the agent has stopped waiting for it."""

    def admit(self, order: Order, *, begun: bool) -> AdmissionResult: ...

    def release(self, uid: str, *, over: bool) -> None:
        """Give back the resources of an instance; `over` False: it is stopping and gives them back soon."""

    async def save(self, entry: Entry) -> None:
        """Write the journal entry to disk."""

    async def forget(self, uid: str) -> None:
        """Delete everything that is kept for the instance."""

    def report(self, order: Order, before: InstanceStatus, status: InstanceStatus) -> None: ...

    def record_secret_change(self, order: Order, message: str, *, failed: bool = False) -> None:
        """Record an event about the delivery of a changed secret."""
