"""Preemptions in the store: the time of the stop orders."""

from __future__ import annotations

import pytest

from mandor.lib.clock import ManualClock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.preempting import Claim, Preempting, Preemption
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_instance, make_node

DECIDED_AT = 7.0


async def stored(store: MemoryStore, key: Key) -> Instance:
    found = await store.get(key)
    assert isinstance(found, Instance)
    return found


async def added(store: MemoryStore, instance: Instance) -> Instance:
    await store.commit(Put(instance.changed(meta=type(instance.meta)(name=instance.meta.name, namespace="default"))))
    return await stored(store, instance.key)


@pytest.mark.req("S1-35")
@pytest.mark.parametrize("changed", [False, True])
async def test_victims_stop_at_the_time_of_the_decision_unless_the_order_is_written_later(changed: bool) -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await store.commit(Put(make_node("n1")))
    node = await store.get(Key("node", "", "n1"))
    assert node is not None
    waiting = await added(store, make_instance(0, Phase.PENDING, version=0))
    victim = await added(store, make_instance(1, Phase.RUNNING, node="n1", version=0))
    if changed:
        await store.commit(Put(victim))
    failed: list[Preemption] = []
    preempting = Preempting(store, clock, Recorder(store, "scheduler", clock), SchedulerMetrics(), failed=failed.append)
    claim = Claim(waiting, "n1", node.meta.version)
    await preempting.carry_out(Preemption((claim,), (victim,), "Nominated", "takes the place of web-1", DECIDED_AT))
    assert not failed
    stop = (await stored(store, victim.key)).spec.stop
    assert stop is not None
    assert stop.at == (clock.now() if changed else DECIDED_AT)
