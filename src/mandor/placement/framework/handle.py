"""The handle of a plugin: the snapshot, waiting instances, and writes of the binding cycle."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mandor.model.meta import Key
from mandor.placement.framework.points import HttpCall, HttpReply
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Waiting:
    """An instance whose node is reserved and that waits for the approval of Permit plugins."""

    request: PlacementRequest
    node: str
    plugins: tuple[str, ...]
    """Names of the plugins that have not approved yet."""

    @property
    def key(self) -> Key:
        return self.request.key


@dataclass(frozen=True, slots=True)
class GangMembers:
    """Number of members of a gang by state."""

    needed: int
    """Number of members that need a node before any is bound."""
    bound: int
    coming: int
    """Number of members that are decided and not bound yet."""


class Handle(Protocol):
    """Passed to the constructor of a plugin; valid as long as the plugin exists."""

    def snapshot(self) -> Snapshot:
        """Return the current snapshot."""

    def waiting(self) -> Sequence[Waiting]:
        """Return the instances that wait for a permit, the longest waiting first."""

    def approve(self, key: Key, plugin: str) -> bool:
        """Approve a waiting instance in the name of a plugin; it is bound when all plugins have approved.

        Return False if it does not wait for this plugin.
        """

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        """Release the node of a waiting instance and queue it again. Return False if it does not wait."""

    def gang_members(self, request: PlacementRequest) -> GangMembers | None:
        """Return the members of the gang of an instance; None: the instance is in no gang."""

    async def bind(self, request: PlacementRequest, node: str) -> None:
        """Write the placement to the store, in one batch with others; raise if that fails."""

    async def inquire(self, question: HttpCall) -> HttpReply:
        """Send an HTTP call; a failure is reported in `HttpReply.problem`."""

    async def place_volumes(self, request: PlacementRequest, node: str) -> None:
        """Write to the store that the volumes of the instance are on that node; raise if one is on another node."""


class Detached:
    """Handle of plugins that decide without a cluster: for plans, explanations and tests."""

    def __init__(self, snapshot: Callable[[], Snapshot] | None = None) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            raise RuntimeError("this plugin runs without a cluster: there is no snapshot")
        return self._snapshot()

    def waiting(self) -> Sequence[Waiting]:
        return ()

    def approve(self, key: Key, plugin: str) -> bool:
        return False

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        return False

    def gang_members(self, request: PlacementRequest) -> GangMembers | None:
        return None

    async def bind(self, request: PlacementRequest, node: str) -> None:
        raise RuntimeError("this plugin runs without a cluster: it cannot bind")

    async def inquire(self, question: HttpCall) -> HttpReply:
        return HttpReply(problem=f"this plugin runs without a cluster: it cannot call {question.url}")

    async def place_volumes(self, request: PlacementRequest, node: str) -> None:
        raise RuntimeError("this plugin runs without a cluster: it cannot place volumes")


DETACHED = Detached()
