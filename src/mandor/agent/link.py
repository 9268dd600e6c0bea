"""What an agent asks of the control plane besides its store: joining, heartbeats, sessions."""

from types import TracebackType
from typing import Protocol, Self

from msgspec import Struct

from mandor.model.instance import Instance
from mandor.model.record import ClusterSpec, Session
from mandor.model.usage import InstanceUsage, NodeUsage


class Heartbeat(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """A heartbeat: tiny, every few seconds, kept in the server's memory."""

    cluster: str
    usage: NodeUsage = NodeUsage()
    instances: dict[str, InstanceUsage] = {}
    """By `namespace/name`."""


class Duplex(Protocol):
    """Binary frames both ways; leaving the block closes it."""

    async def send(self, frame: bytes) -> None: ...

    async def receive(self) -> bytes | None:
        """None: the other side has closed it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Link(Protocol):
    @property
    def features(self) -> frozenset[str]:
        """What every server of the cluster can do, as they last said."""

    async def join(self) -> ClusterSpec:
        """Make this node known, or show that it is the one that is known; safe to repeat."""

    async def cluster(self) -> ClusterSpec:
        """Which cluster answers, and in which epoch it is."""

    @property
    def renewing(self) -> bool:
        """A renewal of the node's credential has begun, and is not known to be over."""

    @property
    def renew_at(self) -> float | None:
        """When the node is to have another credential, as the servers last said, on the agent's monotonic clock; None:
        only when it is told to."""

    async def renew_credential(self) -> None:
        """The node has another one afterwards; safe to repeat, and to be cut short at any point."""

    async def identity(self, instance: Instance, task: str) -> tuple[str, float]:
        """A signed token for a task of an instance of this node, and the seconds that it is good."""

    @property
    def certify_at(self) -> float | None:
        """When the node is to have another certificate, on the agent's monotonic clock; None: it has none."""

    async def renew_certificate(self) -> None:
        """The node has another certificate for its key afterwards; safe to repeat."""

    async def heartbeat(self, beat: Heartbeat) -> ClusterSpec: ...

    async def dial(self, session: Session) -> Duplex:
        """Connect to the server that holds the session's caller."""
