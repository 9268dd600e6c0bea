"""Calls of an agent to the control plane besides its store: joining, heartbeats, credentials, sessions."""

from collections.abc import Mapping
from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct

from mandor.model.instance import Instance
from mandor.model.record import ClusterSpec, Session
from mandor.model.usage import InstanceUsage, NodeUsage


class Heartbeat(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """A heartbeat: small, sent every few seconds, kept in the servers' memory."""

    cluster: str
    usage: NodeUsage = NodeUsage()
    instances: dict[str, InstanceUsage] = {}
    """Usage by `namespace/name`."""


class Applied(Struct, frozen=True, gc=False, kw_only=True):
    """Revisions of services that the data paths of all live nodes have applied."""

    complete: bool
    """Whether every live node has reported; if not, `lowest` can be too high."""
    lowest: dict[str, int] = {}
    """Lowest revision by requested namespace; absent: no node balances it."""


class Duplex(Protocol):
    """A connection for binary frames in both directions; leaving the block closes it."""

    async def send(self, frame: bytes) -> None: ...

    async def receive(self) -> bytes | None:
        """Return the next frame; None: the other side has closed the connection."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Link(Protocol):
    """Connection of an agent to the control plane."""

    @property
    def features(self) -> frozenset[str]:
        """Features that every server of the cluster supports, as last reported."""

    async def join(self) -> ClusterSpec:
        """Register this node, or authenticate as the registered one; safe to repeat."""

    async def cluster(self) -> ClusterSpec:
        """Return the cluster that answers, with its epoch."""

    @property
    def renewing(self) -> bool:
        """Whether a renewal of the node's credential was started and not confirmed."""

    @property
    def renew_at(self) -> float | None:
        """Time of the next renewal of the credential, on the agent's monotonic clock; None: only when the node's object
        requests one."""

    async def renew_credential(self) -> None:
        """Replace the node's credential; safe to repeat, and to be interrupted at any point."""

    async def identity(self, instance: Instance, task: str) -> tuple[str, float]:
        """Return a signed identity token for a task of an instance of this node, and its lifetime in seconds."""

    @property
    def certify_at(self) -> float | None:
        """Time of the next renewal of the certificate, on the agent's monotonic clock; None: the node has none."""

    async def renew_certificate(self) -> None:
        """Get a new certificate for the node's key; safe to repeat."""

    async def heartbeat(self, beat: Heartbeat) -> ClusterSpec: ...

    async def report_applied(self, namespaces: Mapping[str, int]) -> None:
        """Report the revision of services that this node's data path has applied, by namespace."""

    async def wait_applied(self, asks: Mapping[str, int]) -> Applied:
        """Wait until the data paths of all nodes have applied these revisions, by namespace, at most for seconds."""

    def leave_server(self) -> None:
        """Send the next requests to another server, if there are several."""

    async def dial(self, session: Session) -> Duplex:
        """Connect to the server that the session's client is connected to."""
