"""The node controller: phases of a node whose heartbeats have stopped."""

from __future__ import annotations

import asyncio

from mandor.controllers.node import NodeController
from mandor.controllers.node_plan import NodeTimes
from mandor.controllers.runner import run
from mandor.lib.clock import ManualClock, settle
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase
from mandor.model.record import HeartbeatSummary, HeartbeatSummarySpec, Lease, LeaseSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_node


async def test_a_silent_node_becomes_suspect_and_then_down_at_the_configured_times() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    for name in ("n1", "n2"):
        await store.commit(Put(make_node(name).changed(meta=Meta(name=name))))
    await store.commit(Put(Lease(meta=Meta(name="server-s1"), spec=LeaseSpec(holder="s1", seconds=3600))))
    await store.commit(Put(HeartbeatSummary(meta=Meta(name="s1"), spec=HeartbeatSummarySpec(nodes=("n1",)))))
    times = NodeTimes(suspect_seconds=20, lost_seconds=60, tick_seconds=1)
    controller = NodeController(store, clock, Recorder(store, "test", clock), times)
    task = asyncio.ensure_future(run(controller, store, clock))
    await settle(200)
    phases: dict[int, NodePhase] = {}
    for second in range(1, 200):
        await clock.advance(1)
        await settle(50)
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
