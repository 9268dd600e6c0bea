"""The handle of a running scheduler."""

from collections.abc import Awaitable, Callable, Sequence

from mandor.model.meta import Key
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.handle import Muster, Waiting
from mandor.placement.framework.points import Question, Reply
from mandor.placement.framework.snapshot import Snapshot
from mandor.scheduler.permits import PermitWaits


class ClusterHandle:
    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        room: PermitWaits,
        bind: Callable[[Ask, str], Awaitable[None]],
        place_volumes: Callable[[Ask, str], Awaitable[None]],
        muster: Callable[[Ask], Muster | None],
        inquire: Callable[[Question], Awaitable[Reply]],
    ) -> None:
        self._inquire = inquire
        self._snapshot = snapshot
        self._room = room
        self._bind = bind
        self._place_volumes = place_volumes
        self._muster = muster

    def snapshot(self) -> Snapshot:
        return self._snapshot()

    def waiting(self) -> Sequence[Waiting]:
        return self._room.waiting()

    def approve(self, key: Key, plugin: str) -> bool:
        return self._room.approve(key, plugin)

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        return self._room.reject(key, plugin, why)

    def muster(self, ask: Ask) -> Muster | None:
        return self._muster(ask)

    async def bind(self, ask: Ask, node: str) -> None:
        await self._bind(ask, node)

    async def inquire(self, question: Question) -> Reply:
        return await self._inquire(question)

    async def place_volumes(self, ask: Ask, node: str) -> None:
        await self._place_volumes(ask, node)
