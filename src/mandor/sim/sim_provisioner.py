"""Machines on demand in a simulated cluster: whatever provisioner a pool names, they come from here."""

import itertools

from mandor.controllers.node_autoscale import MachineSource
from mandor.model.node import Taint
from mandor.model.resources import Resources
from mandor.provision.base import JoinInfo, MachineOrder
from mandor.provision.fake import FakeProvisioner
from mandor.sim.cluster import SimCluster
from mandor.sim.node import NodeKind

BOOT_SECONDS = 30.0
"""Seconds from the order of a machine until its agent runs."""
DISK_BYTES = 100 << 30
"""Size of a machine whose kind has none."""


class SimProvisioner:
    """A machine that is taken away is gone at once, with all that runs on it."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster, self._provisioner = cluster, FakeProvisioner()
        self._provisioner.made, self._provisioner.taken = self._made, self._taken
        self._numbers = itertools.count(1)

    @property
    def source(self) -> MachineSource:
        return MachineSource(lambda scaling: self._provisioner, self._join, lambda: str(next(self._numbers)))

    async def _join(self, machine: str, pool: str, seconds: float) -> JoinInfo:
        return JoinInfo(servers=("simulated",), token="")  # there is nobody to show it to

    def _made(self, order: MachineOrder) -> None:
        self._cluster.start(f"{order.id} boots", self._boot(order))

    def _taken(self, order: MachineOrder) -> None:
        self._cluster.start(f"{order.id} ends", self._end(order.id))

    async def _boot(self, order: MachineOrder) -> None:
        await self._cluster.clock.sleep(BOOT_SECONDS)
        if order.id not in self._provisioner.orders:
            return  # it was given back before
        what, has = order.what, order.what.capacity
        kind = NodeKind(
            name=order.id,
            has=Resources(has.cpu_milli, has.memory_bytes, has.disk_bytes or DISK_BYTES, has.devices),
            labels=what.labels,
            pool=order.pool,
            taints=tuple(map(Taint.parse, what.taints)),
            engines=what.engines,
        )
        await self._cluster.add_nodes([kind])

    async def _end(self, machine: str) -> None:
        node = self._cluster.nodes.pop(machine, None)
        if node is not None:
            await node.crash()
            await node.connection.close()
