"""Tallies: sums of the usage in heartbeats, and their writes to the store."""

from __future__ import annotations

import pytest

from mandor.api.heartbeat import LIVE_SECONDS, Heartbeats, Report
from mandor.api.tallies import GROUPS_MOST, Tallies
from mandor.lib.clock import ManualClock
from mandor.model.usage import GroupUsage, InstanceUsage, UsageSummary
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.scenarios.make import make_workload

SCALED = {"min": 1, "max": 4, "cpu": "50%"}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


async def tallies(store: MemoryStore) -> dict[str, dict[str, GroupUsage]]:
    found = (await store.list("tally")).items
    return {each.meta.name: dict(each.spec.groups) for each in found if isinstance(each, UsageSummary)}


def report(**cpu: int) -> Report:
    return Report(
        instances={f"default/{name.replace('_', '-')}": InstanceUsage(cpu_milli=used) for name, used in cpu.items()}
    )


@pytest.mark.req("S2-47")
async def test_only_groups_that_follow_their_load_are_summed_up(store: MemoryStore, clock: ManualClock) -> None:
    await store.commit(Put(make_workload("web", version=0, cpu="1", autoscale=SCALED)))
    await store.commit(Put(make_workload("api", version=0, cpu="1")))
    beats = Heartbeats(store, clock, "s1", "http://s1")
    await beats.tick()
    beats.beat("n1", report(web_0=100, web_1=200, api_0=900))
    beats.beat("n2", report(web_2=300))
    await clock.advance(5)
    await beats.tick()
    assert await tallies(store) == {"s1": {"default/web": GroupUsage(3, 600, 0)}}


async def test_what_warms_up_shows_nothing_about_the_load(store: MemoryStore, clock: ManualClock) -> None:
    await store.commit(Put(make_workload("web", version=0, cpu="1", autoscale=SCALED)))
    beats = Heartbeats(store, clock, "s1", "http://s1")
    await beats.tick()
    warming = {"default/web-1": InstanceUsage(cpu_milli=1000, warming=True)}
    beats.beat("n1", Report(instances={"default/web-0": InstanceUsage(cpu_milli=100), **warming}))
    await clock.advance(5)
    await beats.tick()
    assert await tallies(store) == {"s1": {"default/web": GroupUsage(1, 100, 0)}}


async def test_a_silent_node_is_left_out_and_nothing_left_is_no_object(store: MemoryStore, clock: ManualClock) -> None:
    await store.commit(Put(make_workload("web", version=0, cpu="1", autoscale=SCALED)))
    beats = Heartbeats(store, clock, "s1", "http://s1")
    await beats.tick()
    beats.beat("n1", report(web_0=100))
    await clock.advance(5)
    await beats.tick()
    assert await tallies(store)
    await clock.advance(LIVE_SECONDS + 1)
    await beats.tick()
    assert not await tallies(store)


async def test_the_same_again_is_not_written_again(store: MemoryStore, clock: ManualClock) -> None:
    await store.commit(Put(make_workload("web", version=0, cpu="1", autoscale=SCALED)))
    sums = Tallies("s1")
    await sums.writes(store, 0)
    sums.record("n1", report(web_0=100).instances)
    writes = await sums.writes(store, 5)
    assert len(writes) == 1
    await store.commit(*writes)
    sums.record("n1", report(web_0=100).instances)
    assert not await sums.writes(store, 10)
    sums.record("n1", report(web_0=101).instances)
    assert not await sums.writes(store, 12), "it is not time yet"
    assert await sums.writes(store, 15)


async def test_thousands_of_groups_take_several_small_objects(store: MemoryStore, clock: ManualClock) -> None:
    names = [f"w{number}" for number in range(2 * GROUPS_MOST + 1)]
    for name in names:
        await store.commit(Put(make_workload(name, version=0, cpu="1", autoscale=SCALED)))
    sums = Tallies("s1")
    await sums.writes(store, 0)
    sums.record("n1", {f"default/{name}-0": InstanceUsage(cpu_milli=1) for name in names})
    writes = await sums.writes(store, 5)
    await store.commit(*writes)
    found = await tallies(store)
    assert sorted(found) == ["s1", "s1.1", "s1.2"]
    assert sum(len(each) for each in found.values()) == len(names)
