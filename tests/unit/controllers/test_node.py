"""The node controller: how often it looks."""

from __future__ import annotations

import asyncio

from mandor.controllers.node import NodeController
from mandor.controllers.node_plan import NodeTimes
from mandor.controllers.runner import run
from mandor.lib.clock import ManualClock, settle
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase
from mandor.model.record import Hearing, HearingSpec, Lease, LeaseSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_node


class Counted(NodeController):
    looks = 0

    async def reconcile(self, key: str) -> float | None:
        self.looks += 1
        return await super().reconcile(key)


async def test_while_a_node_is_silent_only_looks_that_could_find_something_else_are_made() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for name in ("n1", "n2"):
        await store.commit(Put(make_node(name).changed(meta=Meta(name=name))))
    await store.commit(Put(Lease(meta=Meta(name="server-s1"), spec=LeaseSpec(holder="s1", seconds=3600))))
    await store.commit(Put(Hearing(meta=Meta(name="s1"), spec=HearingSpec(nodes=("n1",)))))
    times = NodeTimes(suspect_seconds=20, lost_seconds=60, tick_seconds=1)
    controller = Counted(store, clock, Recorder(store, "test", clock), times)
    task = asyncio.ensure_future(run(controller, store, clock))
    await settle(200)
    phases: dict[int, NodePhase] = {}
    looks: dict[int, int] = {}
    for second in range(1, 200):
        before = controller.looks
        await clock.advance(1)
        await settle(50)
        looks[second] = controller.looks - before
        found = await store.get(Key(Node.kind, "", "n2"))
        assert isinstance(found, Node)
        phases[second] = found.status.phase
    task.cancel()
    await asyncio.wait({task})
    assert [phases[second] for second in (19, 20, 59, 60, 199)] == [
        NodePhase.READY,
        NodePhase.SUSPECT,
        NodePhase.SUSPECT,
        NodePhase.DOWN,
        NodePhase.DOWN,
    ]
    assert {second for second, many in looks.items() if many} <= {20, 21, 60, 61, 90}
