"""The handle that plugins of a running scheduler get."""

from collections.abc import Sequence

from mandor.model.meta import Key
from mandor.placement.framework.handle import GangMembers, Waiting
from mandor.placement.framework.points import HttpCall, HttpReply
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.table import Table
from mandor.scheduler.consultations import Inquire
from mandor.scheduler.gangs import Gangs
from mandor.scheduler.outcomes import Outcomes
from mandor.scheduler.permits import PermitWaits
from mandor.scheduler.volumes import VolumeWriter


class ClusterHandle:
    """Gives plugins the part of the scheduler that they may use."""

    def __init__(
        self,
        table: Table,
        permits: PermitWaits,
        outcomes: Outcomes,
        volumes: VolumeWriter,
        gangs: Gangs,
        inquire: Inquire,
    ) -> None:
        self._table = table
        self._permits = permits
        self._outcomes = outcomes
        self._volumes = volumes
        self._gangs = gangs
        self._inquire = inquire

    def snapshot(self) -> Snapshot:
        return self._table.snapshot()

    def waiting(self) -> Sequence[Waiting]:
        return self._permits.waiting()

    def approve(self, key: Key, plugin: str) -> bool:
        return self._permits.approve(key, plugin)

    def reject(self, key: Key, plugin: str, why: str = "") -> bool:
        return self._permits.reject(key, plugin, why)

    def gang_members(self, request: PlacementRequest) -> GangMembers | None:
        return self._gangs.gang_members(request)

    async def bind(self, request: PlacementRequest, node: str) -> None:
        await self._outcomes.bind(request, node)

    async def inquire(self, question: HttpCall) -> HttpReply:
        return await self._inquire(question)

    async def place_volumes(self, request: PlacementRequest, node: str) -> None:
        await self._volumes.write(request, node)
