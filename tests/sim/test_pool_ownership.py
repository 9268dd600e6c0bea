"""Several schedulers: each node belongs to exactly one scheduler, by its pool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from mandor.errors import Conflict, Invalid
from mandor.lib.clock import ManualClock, settle
from mandor.model.meta import Key, Meta
from mandor.model.record import Lease, LeaseSpec
from mandor.scheduler.loop import Scheduler
from mandor.scheduler.pool_ownership import Pools, claim, election_of
from mandor.store.base import Check, Put
from mandor.store.fence import FencedStore
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    """Two schedulers: one for `default` and `web`, one for `gpu`."""
    made = World()
    made.scheduler_options = {"pools": frozenset({"default", "web"})}
    async with made:
        made.checks = [made.check_capacity, made.check_count]
        recorder = Recorder(made.store, "scheduler", made.clock)
        made.start("other", Scheduler(made.store, made.clock, recorder, pools=frozenset({"gpu"})).run())
        yield made


@pytest.mark.req("S1-30")
async def test_work_goes_to_the_scheduler_of_its_pool_and_to_no_other(world: World) -> None:
    await world.add_nodes("d1", "d2", cpu=2)
    await world.add_nodes("g1", cpu=2, pool="gpu")
    await world.apply(make_workload("plain", replicas=4, cpu="1"))
    await world.apply(make_workload("train", replicas=2, cpu="1", placement={"pool": "gpu"}))
    await world.until(lambda: world.serving_count("plain") == 4 and world.serving_count("train") == 2)
    assert {each.node for each in world.instances("plain")} == {"d1", "d2"}
    assert {each.node for each in world.instances("train")} == {"g1"}
    await world.apply(make_workload("plain", replicas=5, cpu="1"))
    await world.run(10)
    assert world.serving_count("plain") == 4, "the free room is in a pool it has not named"


async def test_without_one_scheduler_the_other_goes_on_and_touches_nothing_of_it(world: World) -> None:
    await world.add_nodes("d1", cpu=4)
    await world.add_nodes("g1", cpu=4, pool="gpu")
    await world.run(2)
    await world.kill("other")
    await world.apply(make_workload("train", replicas=1, placement={"pool": "gpu"}))
    await world.apply(make_workload("soft", replicas=1, placement={"pool": {"name": "gpu", "strength": "should"}}))
    await world.apply(make_workload("plain", replicas=1))
    await world.until(lambda: world.serving_count("plain") == 1)
    await world.run(20)
    assert not world.instance("train-0").node
    assert not world.instance("soft-0").node


async def test_a_node_that_changes_its_pool_changes_its_scheduler(world: World) -> None:
    await world.add_nodes("n1", cpu=4)
    await world.apply(make_workload("train", replicas=1, placement={"pool": "gpu"}))
    await world.run(10)
    assert not world.instance("train-0").node
    await world.change_node("n1", pool="gpu")
    await world.until(lambda: world.serving_count("train") == 1, seconds=15)
    await world.apply(make_workload("plain", replicas=1))
    await world.run(10)
    assert not world.instance("plain-0").node


# Claims.


async def lead(store: MemoryStore, pools: Pools, renewals: int = 0, holder: str = "s1") -> None:
    """As an election does."""
    name = election_of(pools)
    for kind in ("leader", "term"):
        key = Key(Lease.kind, "", f"{kind}-{name}")
        known = await store.get(key)
        meta = known.meta if known is not None else Meta(name=key.name)
        await store.commit(Put(Lease(meta=meta, spec=LeaseSpec(holder, 10.0, renewals, "http://one:8080"))))


async def claiming(store: MemoryStore, clock: ManualClock, pools: Pools, *, renewing: Pools | str = "nobody") -> None:
    task = asyncio.ensure_future(claim(store, clock, pools))
    for turn in range(40):
        await settle(20)
        if task.done():
            break
        if renewing != "nobody":
            assert not isinstance(renewing, str)
            await lead(store, renewing, renewals=turn + 1)
        await clock.advance(0.5)
    await task


WEB, GPU, BOTH = frozenset({"web"}), frozenset({"gpu"}), frozenset({"web", "gpu"})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


async def test_pools_that_do_not_meet_are_claimed_side_by_side(store: MemoryStore, clock: ManualClock) -> None:
    await claiming(store, clock, WEB)
    await lead(store, WEB)
    await claiming(store, clock, GPU)
    await claiming(store, clock, GPU)  # The second server of the same pools.
    held = {each.meta.name: each.spec.holder for each in (await store.list("lease")).items if isinstance(each, Lease)}
    assert {name: held[name] for name in ("pool-web", "pool-gpu")} == {
        "pool-web": election_of(WEB),
        "pool-gpu": election_of(GPU),
    }


@pytest.mark.parametrize(("first", "second"), [(WEB, BOTH), (BOTH, GPU), (None, GPU), (GPU, None)])
async def test_a_pool_of_a_scheduler_that_lives_is_refused(
    store: MemoryStore, clock: ManualClock, first: Pools, second: Pools
) -> None:
    await claiming(store, clock, first)
    await lead(store, first)
    with pytest.raises(Invalid, match="at http://one:8080 owns some of them"):
        await claiming(store, clock, second, renewing=first)


@pytest.mark.parametrize(("first", "second"), [(WEB, BOTH), (BOTH, GPU), (None, GPU), (GPU, None)])
async def test_what_a_dead_scheduler_owned_is_taken_over_and_it_can_write_nothing_more(
    store: MemoryStore, clock: ManualClock, first: Pools, second: Pools
) -> None:
    await claiming(store, clock, first)
    await lead(store, first)
    term = await store.get(Key(Lease.kind, "", f"term-{election_of(first)}"))
    assert term is not None
    fenced = FencedStore(store, Check(term.key, term.meta.version), lambda: None)
    await claiming(store, clock, second)
    with pytest.raises(Conflict):
        await fenced.commit(Put(Lease(meta=Meta(name="anything"), spec=LeaseSpec("x", 1.0))))
    await lead(store, second)
    with pytest.raises(Invalid):
        await claiming(store, clock, first, renewing=second)


async def test_instances_of_an_unowned_pool_have_a_reason_until_it_is_owned(world: World) -> None:
    await world.add_nodes("m1", cpu=4, pool="metal")
    await claim(world.store, world.clock, frozenset({"default", "web"}))
    await world.apply(make_workload("vm", replicas=2, placement={"pool": "metal"}))
    await world.run(8)
    told = {(each.status.reason, each.status.message) for each in world.instances("vm")}
    assert told == {("Unclaimed", "no scheduler takes the pool metal")}
    await claim(world.store, world.clock, frozenset({"metal"}))
    recorder = Recorder(world.store, "scheduler", world.clock)
    world.start("third", Scheduler(world.store, world.clock, recorder, pools=frozenset({"metal"})).run())
    await world.until(lambda: world.serving_count("vm") == 2)


async def test_work_for_a_pool_whose_scheduler_is_gone_reports_it(world: World) -> None:
    await claim(world.store, world.clock, frozenset({"gpu"}))
    lease = Lease(
        meta=Meta(name=f"leader-{election_of(frozenset({'gpu'}))}"), spec=LeaseSpec("somebody", 3.0, address="there")
    )
    await world.store.commit(Put(lease))
    await world.kill("other")
    await world.apply(make_workload("train", replicas=1, placement={"pool": "gpu"}))
    await world.run(15)
    assert world.instance("train-0").status.message == "no scheduler takes the pool gpu: its owner is gone"
