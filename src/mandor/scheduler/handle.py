"""The handle of a running scheduler."""

from collections.abc import Awaitable, Callable, Sequence

from mandor.model.meta import Key
from mandor.placement.framework.handle import GangMembers, Waiting
from mandor.placement.framework.points import Question, Reply
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.scheduler.permits import PermitWaits


class ClusterHandle:
    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        room: PermitWaits,
        bind: Callable[[PlacementRequest, str], Awaitable[None]],
        place_volumes: Callable[[PlacementRequest, str], Awaitable[None]],
        gang_members: Callable[[PlacementRequest], GangMembers | None],
        inquire: Callable[[Question], Awaitable[Reply]],
    ) -> None:
        self._inquire = inquire
        self._snapshot = snapshot
        self._room = room
        self._bind = bind
        self._place_volumes = place_volumes
        self._muster = gang_members

    def snapshot(self) -> Snapshot:
        return self._snapshot()

    def waiting(self) -> Sequence[Waiting]:
        return self._room.waiting()

    def approve(self, key: Key, plugin: str) -> bool:
        return self._room.approve(key, plugin)

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        return self._room.reject(key, plugin, why)

    def gang_members(self, request: PlacementRequest) -> GangMembers | None:
        return self._muster(request)

    async def bind(self, request: PlacementRequest, node: str) -> None:
        await self._bind(request, node)

    async def inquire(self, question: Question) -> Reply:
        return await self._inquire(question)

    async def place_volumes(self, request: PlacementRequest, node: str) -> None:
        await self._place_volumes(request, node)
