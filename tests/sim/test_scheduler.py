"""The scheduler at work: restarts, races, capacity, and what it says about those who wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from msgspec.structs import replace

from mandor.controllers.node import NodeController
from mandor.controllers.runner import run_all
from mandor.controllers.workload import WorkloadController
from mandor.errors import Unavailable
from mandor.lib.clock import settle
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Meta
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.priority import PriorityClass, PriorityClassSpec
from mandor.model.resources import Resources
from mandor.scheduler.loop import Scheduler
from mandor.scheduler.queue import SchedulingQueue
from mandor.store.base import Check, Put, Store, Write
from mandor.store.election import Election
from mandor.store.recorder import Recorder
from mandor.store.wrapper import StoreWrapper
from tests.scenarios.make import make_class, make_workload
from tests.scenarios.world import World


def waiting(world: World) -> list[Instance]:
    return [each for each in world.instances() if each.phase is Phase.PENDING]


@pytest.mark.req("S0-25", "S0-26")
async def test_a_bind_is_written_once_with_a_check_on_its_node(world: World) -> None:
    seen: list[Sequence[Write]] = []
    commit = world.store.commit

    async def listen(*writes: Write) -> int:
        seen.append(writes)
        return await commit(*writes)

    world.store.commit = listen  # type: ignore[method-assign]
    await world.add_nodes("n1")
    await world.run(2)
    seen.clear()
    await world.apply(make_workload("web", replicas=5))
    await world.until(lambda: world.serving_count("web") == 5)

    binds = [
        (writes, write.value)
        for writes in seen
        for write in writes
        if isinstance(write, Put) and isinstance(write.value, Instance) and write.value.phase is Phase.RESERVED
    ]
    assert sorted(value.meta.name for _, value in binds) == [f"web-{index}" for index in range(5)]
    assert all(any(isinstance(write, Check) and write.key.name == "n1" for write in writes) for writes, _ in binds)
    assert all(len(writes) > 2 for writes, _ in binds), "several binds share a commit"


@pytest.mark.req("S2-13")
async def test_an_instance_that_does_not_fit_waits_with_a_reason(world: World) -> None:
    await world.add_nodes("n1", "n2", memory=1024**3)
    await world.apply(make_workload("big", replicas=1, memory="1536Mi"))
    await world.run(3)

    status = world.instance("big-0").status
    assert status.reason == "Unschedulable"
    assert status.message == "0/2 nodes fit: 2 NodeResourcesFit (short of 512Mi memory)"
    assert world.workload("big").status.message == f"big-0: {status.message}"
    assert world.events("Unschedulable")


@pytest.mark.req("S3-24")
async def test_a_rule_that_was_given_up_is_written_on_the_instance(world: World) -> None:
    await world.add_nodes("n1")
    rules = {"where": [{"rule": "disk == ssd", "strength": "should"}, {"rule": "zone == a", "strength": "should"}]}
    await world.apply(make_workload("web", replicas=1, placement=rules))
    await world.until(lambda: world.serving_count("web") == 1)
    assert world.instance("web-0").spec.relaxed == ("zone == a", "disk == ssd")

    await world.apply(make_workload("free", replicas=1))
    await world.until(lambda: world.serving_count("free") == 1)
    assert world.instance("free-0").spec.relaxed == ()


async def test_the_reason_is_written_only_when_it_changes(world: World) -> None:
    await world.add_nodes("n1", memory=1024**3)
    await world.apply(make_workload("big", replicas=1, memory="2Gi"))
    await world.run(3)
    version = world.instance("big-0").meta.version
    await world.apply(make_workload("other", replicas=1))
    await world.run(400, step=5)
    assert world.instance("big-0").meta.version == version

    await world.add_nodes("n2", memory=1024**3)
    await world.run(20)
    assert "0/2" in world.instance("big-0").status.message


async def test_a_change_that_cannot_help_waiting_instances_starts_no_cycle(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[float] = []
    flush = SchedulingQueue.flush

    def noted(queue: SchedulingQueue, *, now: float) -> None:
        turns.append(now)
        flush(queue, now=now)

    monkeypatch.setattr(SchedulingQueue, "flush", noted)
    await world.add_nodes("n1")
    await world.apply(make_workload("web", replicas=2))
    await world.until(lambda: world.serving_count("web") == 2)
    await world.run(5)
    turns.clear()

    for name in ("web-0", "web-1"):
        instance = world.instance(name)
        await world.store.commit(Put(instance.changed(status=replace(instance.status, message="busy"))))
    await world.apply(make_workload("web", replicas=1))
    await world.run(30)
    assert len(world.instances()) == 1
    assert not turns, "nobody waits: nothing that ends or changes gives anybody a place"

    await world.apply(make_workload("big", replicas=1, cpu="64"))
    await world.run(30)
    assert world.instance("big-0").phase is Phase.PENDING
    turns.clear()
    node = world.find(Node, "n1", "")
    assert node is not None
    await world.store.commit(Put(node.changed(status=replace(node.status, usage=Resources(1_000, 1_000)))))
    await world.run(5)
    assert not turns, "who waits for room does not ask how busy nodes are"

    await world.apply(make_workload("web", replicas=2))
    await world.run(5)
    assert turns


@pytest.mark.req("S0-20")
async def test_a_waiting_instance_is_placed_when_a_node_appears(world: World) -> None:
    await world.apply(make_workload("web", replicas=3, cpu="2"))
    await world.run(60)
    assert len(waiting(world)) == 3

    await world.add_nodes("n1", "n2", cpu=4)

    await world.until(lambda: world.serving_count("web") == 3, seconds=15)


async def test_a_waiting_instance_is_placed_when_room_is_freed(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await world.apply(make_workload("first", replicas=1, cpu="2"))
    await world.until(lambda: world.serving_count("first") == 1)
    await world.apply(make_workload("second", replicas=1, cpu="2"))
    await world.run(30)
    assert world.instance("second-0").phase is Phase.PENDING

    await world.apply(make_workload("first", replicas=0, cpu="2"))

    await world.until(lambda: world.serving_count("second") == 1, seconds=15)


async def test_events_on_a_cordoned_node_wake_no_waiting_instance(world: World) -> None:
    await world.add_nodes("n1", "n2", cpu=2)
    for name in ("first", "second"):
        await world.apply(make_workload(name, replicas=1, cpu="2"))
    await world.until(lambda: world.serving_count("first") == world.serving_count("second") == 1)
    node = world.instance("first-0").node
    await world.change_node(node, cordoned=True)
    await world.apply(make_workload("third", replicas=1, cpu="2"))
    await world.run(30)
    assert world.scheduler is not None
    entry = world.scheduler._queue.attempt(world.instance("third-0").key)
    assert entry is not None
    tried = entry.failures

    await world.change_node(node, reserved=Resources(cpu_milli=100))
    await world.change_node(node, reserved=Resources())
    await world.apply(make_workload("first", replicas=0, cpu="2"))
    await world.run(30)
    assert not world.instances("first")
    assert entry.failures == tried

    await world.change_node(node, cordoned=False)
    await world.until(lambda: world.serving_count("third") == 1, seconds=15)


async def test_a_stopping_instance_holds_its_room_until_it_is_over(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await world.apply(make_workload("first", replicas=1, cpu="2"))
    await world.until(lambda: world.serving_count("first") == 1)
    world.nodes["n1"].slow_stop = 40
    await world.apply(make_workload("second", replicas=1, cpu="2"))
    await world.apply(make_workload("first", replicas=0, cpu="2"))
    await world.run(30)
    assert world.instance("second-0").phase is Phase.PENDING
    await world.until(lambda: world.serving_count("second") == 1, seconds=60)


@pytest.mark.req("S3-26")
async def test_a_changed_class_reorders_waiting_instances(world: World) -> None:
    made = {name: make_class(name, value) for name, value in (("high", 100), ("low", 10))}
    await world.store.commit(*(Put(each) for each in made.values()))
    await world.apply(make_workload("first", replicas=1, cpu="2", priority="low"))
    await world.apply(make_workload("second", replicas=1, cpu="2", priority="high"))
    await world.run(2)
    low = world.find(PriorityClass, "low", "")
    assert low is not None
    await world.store.commit(Put(low.changed(spec=PriorityClassSpec(value=1000))))
    await world.run(2)

    await world.add_nodes("n1", cpu=2)

    await world.until(lambda: world.serving_count("first") == 1, seconds=15)
    assert world.instance("second-0").phase is Phase.PENDING


@pytest.mark.req("S3-26")
async def test_a_workload_without_priority_has_the_default_class(world: World) -> None:
    await world.store.commit(Put(make_class("all", 50, default=True)))
    await world.apply(make_workload("first", replicas=1, cpu="2", priority=10))
    await world.apply(make_workload("second", replicas=1, cpu="2"))
    await world.run(2)

    await world.add_nodes("n1", cpu=2)

    await world.until(lambda: world.serving_count("second") == 1, seconds=15)
    assert world.instance("first-0").phase is Phase.PENDING


async def test_uncordoning_lets_the_waiting_in(world: World) -> None:
    await world.add_nodes("n1")
    await world.run(2)
    await world.change_node("n1", cordoned=True)
    await world.apply(make_workload("web", replicas=1))
    await world.run(5)
    assert "cordoned" in world.instance("web-0").status.message

    await world.change_node("n1", cordoned=False)

    await world.until(lambda: world.serving_count("web") == 1, seconds=15)


async def test_higher_priority_is_placed_first(world: World) -> None:
    await world.apply(make_workload("low", replicas=2, cpu="1", priority=1))
    await world.run(1)
    await world.apply(make_workload("high", replicas=2, cpu="1", priority=10))
    await world.run(1)
    await world.add_nodes("n1", cpu=2)
    await world.until(lambda: world.serving_count("high") == 2)
    await world.run(20)
    assert world.serving_count("low") == 0


async def test_a_raised_priority_applies_to_waiting_instances(world: World) -> None:
    await world.apply(make_workload("a", replicas=1, cpu="2", priority=5))
    await world.apply(make_workload("b", replicas=1, cpu="2", priority=1))
    await world.run(2)
    await world.apply(make_workload("b", replicas=1, cpu="2", priority=9))
    await world.run(1)
    await world.add_nodes("n1", cpu=2)
    await world.until(lambda: world.serving_count("b") == 1)
    assert world.serving_count("a") == 0


async def test_an_unknown_profile_is_reported_and_affects_no_other_instance(world: World) -> None:
    await world.add_nodes("n1")
    await world.apply(make_workload("odd", profile="fancy"))
    await world.apply(make_workload("web"))
    await world.until(lambda: world.serving_count("web") == 1)
    await world.run(2)
    assert world.instance("odd-0").status.message == "there is no profile fancy"


async def test_a_pinned_instance_goes_to_its_node_only_and_leaves_others_unaffected(world: World) -> None:
    await world.apply(make_workload("other", replicas=3, cpu="1"))
    await world.run(1)
    for index, node in enumerate(("n1", "n2", "n9")):
        waits = world.instance(f"other-{index}")
        await world.store.commit(Put(waits.changed(spec=replace(waits.spec, pin=node, instead_of="another"))))
    await world.add_nodes("n1", "n2", cpu=2, cordoned=True)
    await world.change_node("n2", cordoned=False)
    await world.until(lambda: world.instance("other-1").spec.node == "n2")
    await world.run(3)
    assert (
        world.instance("other-0").status.message
        == "0/2 nodes fit: 1 NodeUnschedulable (1 cordoned), 1 NodeName (not n1)"
    )
    assert "NodeName (not n9)" in world.instance("other-2").status.message


# Crashes and races.


async def test_an_instance_recreated_before_the_bind_is_written_is_placed_again(world: World) -> None:
    await world.add_nodes("n1", cpu=8)
    await world.apply(make_workload("own", replicas=0, cpu="1"))
    await world.run(1)
    release = world.workload("own").status.release
    for index in range(3):
        spec = InstanceSpec(workload="other", release=release, index=index)
        await world.store.commit(Put(Instance(meta=Meta(name=f"other-{index}", namespace="default"), spec=spec)))
    await world.apply(make_workload("other", replicas=3, cpu="1"))
    await world.until(lambda: world.serving_count("other") == 3)


class SlowStore(StoreWrapper):
    """Passes everything on, but a commit waits until it is let through, and its answer may be lost."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.open = asyncio.Event()
        self.answers_to_lose = 0

    async def commit(self, *writes: Write) -> int:
        await self.open.wait()
        revision = await self._store.commit(*writes)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise Unavailable("the answer was lost")
        return revision


@pytest.fixture
async def slow() -> AsyncIterator[tuple[World, SlowStore]]:
    """A world whose scheduler sees a slow store."""
    world = World()
    store = SlowStore(world.store)
    world.scheduler_store = store
    async with world:
        world.checks = [world.check_capacity, world.check_count]
        yield world, store


@pytest.mark.req("S0-25")
async def test_room_is_counted_before_the_bind_is_written(slow: tuple[World, SlowStore]) -> None:
    world, store = slow
    await world.add_nodes("n1", "n2", cpu=2)
    await world.run(2)
    await world.apply(make_workload("web", replicas=3, cpu="2"))
    await world.run(3)
    assert all(not each.node for each in world.instances()), "nothing is written yet"
    assert world.scheduler is not None
    assert world.scheduler.view.binding == 2
    assert world.scheduler.view.table.free("n1")["cpu"] == 0

    store.open.set()
    await world.until(lambda: world.serving_count("web") == 2)

    assert len(waiting(world)) == 1


@pytest.mark.req("S0-25", "S0-26")
async def test_a_scheduler_that_dies_between_decision_and_bind_loses_and_doubles_nothing(
    slow: tuple[World, SlowStore],
) -> None:
    world, _ = slow
    await world.add_nodes("n1", "n2", cpu=2)
    await world.run(2)
    await world.apply(make_workload("web", replicas=2, cpu="2"))
    await world.run(3)
    assert world.scheduler is not None
    assert world.scheduler.view.binding == 2
    await world.kill("scheduler")
    world.scheduler_store = None

    world.start_scheduler()
    await world.until(lambda: world.serving_count("web") == 2)

    assert {each.node for each in world.instances()} == {"n1", "n2"}


async def test_a_bind_whose_answer_was_lost_is_done_once(slow: tuple[World, SlowStore]) -> None:
    world, store = slow
    await world.add_nodes("n1", "n2")
    store.open.set()
    await world.run(2)
    store.answers_to_lose = 1
    await world.apply(make_workload("web", replicas=4, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 4)
    placed = {each.meta.name: each.node for each in world.instances()}
    await world.run(10)
    assert {each.meta.name: each.node for each in world.instances()} == placed
    assert world.scheduler is not None
    assert world.scheduler.view.binding == 0


async def test_an_instance_stopped_while_its_bind_is_on_the_way_is_not_bound(slow: tuple[World, SlowStore]) -> None:
    world, store = slow
    await world.add_nodes("n1", cpu=2)
    await world.run(2)
    await world.apply(make_workload("web", replicas=2, cpu="1"))
    await world.run(2)
    await world.apply(make_workload("web", replicas=1, cpu="1"))
    await world.run(2)
    assert len(world.instances()) == 1

    store.open.set()
    await world.until(lambda: world.serving_count("web") == 1)

    assert world.scheduler is not None
    assert world.scheduler.view.table.free("n1")["cpu"] == 1000


@pytest.mark.req("S0-24")
async def test_nothing_is_bound_to_a_node_that_was_cordoned_meanwhile(slow: tuple[World, SlowStore]) -> None:
    world, store = slow
    await world.add_nodes("n1")
    await world.run(2)
    await world.apply(make_workload("web", replicas=1))
    await world.run(2)
    await world.change_node("n1", cordoned=True)
    await world.run(1)

    store.open.set()
    await world.run(10)

    assert world.instance("web-0").phase is Phase.PENDING
    assert "cordoned" in world.instance("web-0").status.message


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.req("S0-20", "S0-25", "S2-13")
async def test_capacity_holds_and_counts_converge_under_random_events(seed: int) -> None:
    chance = random.Random(seed)
    async with World(seed=str(seed)) as world:
        world.checks = [world.check_capacity]
        await world.add_nodes("n0", "n1", "n2", "n3", cpu=4)
        wanted: dict[str, int] = {}
        for _ in range(40):
            await random_event(world, chance, wanted)
            await world.run(chance.choice([0.5, 1, 5, 30]))
        for node in world.nodes.values():
            node.alive = True
            await world.change_node(node.name, cordoned=False)
        for name in wanted:
            wanted[name] = 1
            await world.apply(make_workload(name, replicas=1, cpu="500m"))
        await world.until(
            lambda: all(world.serving_count(name) == len(world.instances(name)) == 1 for name in wanted), seconds=600
        )
        assert world.scheduler is not None
        table = world.scheduler.view.table
        for name in world.nodes:
            placed = sum(each.node == name for each in world.instances())
            assert table.free(name)["cpu"] == 4000 - 500 * placed, "the table agrees with the store"


async def random_event(world: World, chance: random.Random, wanted: dict[str, int]) -> None:
    what = chance.choice(["scale", "scale", "scale", "silence", "return", "cordon", "stop", "crash", "delete"])
    node = chance.choice(list(world.nodes.values()))
    if what == "scale":
        name = chance.choice(["a", "b", "c"])
        wanted[name] = chance.randint(0, 9)
        await world.apply(make_workload(name, replicas=wanted[name], cpu="500m"))
    elif what == "silence":
        node.alive = False
    elif what == "return":
        node.alive = True
    elif what == "cordon":
        await world.change_node(node.name, cordoned=chance.random() < 0.5)
    elif what == "stop" and world.instances():
        await world.stop_instance(chance.choice(world.instances()).meta.name)
    elif what == "crash":
        await world.kill("scheduler")
        world.start_scheduler()
        if chance.random() < 0.3:
            await world.kill("controllers")
            world.start_controllers()
    elif what == "delete" and wanted:
        name = chance.choice(sorted(wanted))
        del wanted[name]
        await world.delete(make_workload(name))
        await settle()


async def test_a_flood_of_instances_is_bound_in_batches(world: World) -> None:
    await world.add_nodes(*(f"n{index}" for index in range(10)), cpu=20, memory=80 * 1024**3)
    await world.run(2)
    await world.apply(make_workload("web", replicas=1500, cpu="100m"))
    await world.until(lambda: not waiting(world) and len(world.instances()) == 1500, seconds=30)
    per_node = [sum(each.node == name for each in world.instances()) for name in world.nodes]
    assert max(per_node) - min(per_node) <= 4, "the emptiest first; scores are whole numbers, so about even"


@pytest.mark.req("S0-25")
async def test_two_schedulers_and_controllers_that_compete_place_everything_once() -> None:
    """Both stand for election; the leader is killed again and again; every commit is fenced."""
    async with World() as world:
        await world.kill("scheduler")
        await world.kill("controllers")
        world.checks = [world.check_capacity, world.check_count]
        rivals = [Rival(world, name) for name in ("s1", "s2")]
        await world.add_nodes("n1", "n2", cpu=4)
        for rival in rivals:
            rival.start()
        for count in (3, 6, 2, 5):
            await world.apply(make_workload("web", replicas=count, cpu="1"))
            await world.until(lambda count=count: world.serving_count("web") == count, seconds=60)  # type: ignore[misc]
            leader = next(rival for rival in rivals if rival.leads)
            await leader.stop()
            uids = {each.meta.uid for each in world.instances()}
            await world.until(lambda leader=leader: any(each.leads for each in rivals if each is not leader))  # type: ignore[misc]
            await world.run(3)
            assert {each.meta.uid for each in world.instances()} == uids, "a change of leaders restarts nothing"
            leader.start()
        for rival in rivals:
            await rival.stop()


class Rival:
    """A control plane of its own, in an election."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._election = self._new_election()
        self._task: asyncio.Task[None] | None = None

    def _new_election(self) -> Election:
        return Election(self._world.store, "plane", self._name, 10, self._world.clock)

    @property
    def leads(self) -> bool:
        return self._election.leading

    def start(self) -> None:
        self._election = self._new_election()
        self._task = asyncio.ensure_future(self._election.run(self._work))

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _work(self, store: Store) -> None:
        clock, recorder = self._world.clock, Recorder(store, self._name, self._world.clock)
        controllers = (WorkloadController(store, clock, recorder), NodeController(store, clock, recorder))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(recorder.run())
            tasks.create_task(run_all(controllers, store, clock))
            tasks.create_task(Scheduler(store, clock, recorder).run())
