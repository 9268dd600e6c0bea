"""Nodes without an agent that report scripted statuses, for tests of the control plane."""

from collections.abc import Callable, Iterable, Mapping

import msgspec

from mandor.errors import Conflict
from mandor.lib.clock import Clock
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase, may_move
from mandor.model.record import HeartbeatSummary, HeartbeatSummarySpec, Lease, LeaseSpec
from mandor.model.volume import Volume
from mandor.sim.world import World
from mandor.store.base import Put

Behaviour = Callable[[Instance], InstanceStatus | None]
"""Returns the next status of a running instance; None: no change."""
SERVER = "s1"


class ScriptedNode:
    """A node that starts and stops instances as ordered, also while it is cut off."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        """Whether heartbeats and reports arrive."""
        self.running: dict[str, str] = {}
        """Name by uid: what really runs there."""
        self.disks: set[tuple[str, int]] = set()
        """The volumes that are there: uid and incarnation."""
        self.behave: Behaviour = lambda instance: None
        self.ready = True
        self.idle = False
        """Whether the node sends heartbeats but handles no orders."""
        self.slow_stop = 0.0
        """Seconds it takes to stop something."""

    def report(self, instance: Instance, now: float) -> InstanceStatus | None:
        phase, uid = instance.phase, instance.meta.uid
        if phase.over:
            self.running.pop(uid, None)
            return None
        if instance.spec.stop is not None and now - instance.spec.stop.at < self.slow_stop:
            return None if phase is Phase.STOPPING else InstanceStatus(phase=Phase.STOPPING, since=now)
        if instance.spec.stop is not None:
            self.running.pop(uid, None)
            return InstanceStatus(phase=Phase.STOPPED, reason="StopOrdered", since=now)
        if phase is Phase.RESERVED:
            return InstanceStatus(phase=Phase.STARTING, since=now)
        if phase in {Phase.STARTING, Phase.LOST}:
            self.running[uid] = instance.meta.name
            return InstanceStatus(phase=Phase.RUNNING, ready=self.ready, since=now, started_at=now)
        answer = self.behave(instance)
        if answer is not None and answer.phase.over:
            self.running.pop(uid, None)
        return answer

    def forget_others(self, orders: Mapping[str, Instance]) -> None:
        """Remove instances without an order."""
        for uid in [uid for uid in self.running if uid not in orders or orders[uid].node != self.name]:
            del self.running[uid]


class ScriptedNodes:
    """Scripted nodes and the receiver of their heartbeats; the test calls `beat` and `act` as time passes."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._world, self._clock = world, clock
        self.by_name: dict[str, ScriptedNode] = {}

    async def beat(self, *, lease_seconds: float = 5.0) -> None:
        lease = self._world.find(Lease, f"server-{SERVER}", "")
        spec = LeaseSpec(holder=SERVER, seconds=lease_seconds, renewals=(lease.spec.renewals + 1) if lease else 0)
        meta = lease.meta if lease else Meta(name=f"server-{SERVER}")
        await self._world.store.commit(Put(Lease(meta=meta, spec=spec)))
        heard = tuple(sorted(name for name, node in self.by_name.items() if node.alive))
        hearing = self._world.find(HeartbeatSummary, SERVER, "")
        if hearing is None or hearing.spec.nodes != heard:
            meta = hearing.meta if hearing else Meta(name=SERVER)
            await self._world.store.commit(Put(HeartbeatSummary(meta=meta, spec=HeartbeatSummarySpec(nodes=heard))))

    async def act(self) -> None:
        """Every node looks at all its orders."""
        orders = {each.meta.uid: each for each in self._world.instances()}
        for node in self.by_name.values():
            if not node.alive or node.idle:
                continue
            node.forget_others(orders)
            await self.carry_out(node, [each for each in orders.values() if each.node == node.name])

    async def carry_out(self, node: ScriptedNode, orders: Iterable[Instance]) -> None:
        for each in orders:
            status = node.report(each, self._clock.now())
            if status is None or not may_move(each.phase, status.phase):
                continue
            if each.phase is Phase.RESERVED and not await self._has_volumes(node, each):
                continue
            try:
                await self._world.store.commit(Put(each.reported(status)))
            except Conflict:
                continue  # Someone was faster; next time.

    async def _has_volumes(self, node: ScriptedNode, instance: Instance) -> bool:
        """Report the volumes of an instance as present before it starts, as an agent does."""
        for name in instance.spec.volumes:
            volume = self._world.find(Volume, name, instance.meta.namespace)
            if volume is None or volume.node != node.name:
                return False
            disk = (volume.meta.uid, volume.status.incarnation)
            if not volume.status.path:
                node.disks.add(disk)
                made = volume.changed(status=msgspec.structs.replace(volume.status, path=f"/{name}"))
                try:
                    await self._world.store.commit(Put(made))
                except Conflict:
                    return False
            assert disk in node.disks, f"{instance.meta.name} would begin on {node.name} without its data"
        return True
