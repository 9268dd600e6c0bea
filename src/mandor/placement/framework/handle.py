"""What a plugin can see and do besides its points: the snapshot, and the instances that wait for a permit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mandor.model.meta import Key
from mandor.placement.framework.points import HttpCall, HttpReply
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Waiting:
    """An instance that has its node reserved and waits for somebody's permit."""

    request: PlacementRequest
    node: str
    plugins: tuple[str, ...]
    """Who has told it to wait and not approved since."""

    @property
    def key(self) -> Key:
        return self.request.key


@dataclass(frozen=True, slots=True)
class GangMembers:
    """How much of a gang there is."""

    needed: int
    """So many have to have a node for the gang to be whole."""
    bound: int
    coming: int
    """Decided, and on their way to be bound."""


class Handle(Protocol):
    """Given to a plugin when it is made; it holds for as long as the plugin lives."""

    def snapshot(self) -> Snapshot:
        """The nodes as they are now."""

    def waiting(self) -> Sequence[Waiting]:
        """Who waits for a permit, the longest waiting first."""

    def approve(self, key: Key, plugin: str) -> bool:
        """In the name of the plugin that told it to wait; when all have approved, it goes on.

        False: it does not wait for this plugin."""

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        """It gives its node back and is decided anew. False: it does not wait."""

    def gang_members(self, request: PlacementRequest) -> GangMembers | None:
        """Of the gang that an instance is in; None: it is in none."""

    async def bind(self, request: PlacementRequest, node: str) -> None:
        """Write the placement down, together with others; raises when it could not be."""

    async def inquire(self, question: HttpCall) -> HttpReply:
        """Ask somebody elsewhere, over HTTP; whatever goes wrong is told in the reply."""

    async def place_volumes(self, request: PlacementRequest, node: str) -> None:
        """Write down that the instance's volumes are on that node; raises when one has come to be elsewhere."""


class Detached:
    """For plugins that decide without a cluster around them: a plan, an explanation, a test."""

    def __init__(self, snapshot: Callable[[], Snapshot] | None = None) -> None:
        self._snapshot = snapshot

    def snapshot(self) -> Snapshot:
        if self._snapshot is None:
            raise RuntimeError("there is no cluster to look at")
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
        raise RuntimeError("nothing is bound without a cluster")

    async def inquire(self, question: HttpCall) -> HttpReply:
        return HttpReply(problem=f"there is no way to {question.url} without a cluster")

    async def place_volumes(self, request: PlacementRequest, node: str) -> None:
        raise RuntimeError("no volume is placed without a cluster")


DETACHED = Detached()
