"""Machines on demand, with the whole control plane on a virtual clock: ordered, joined, drained, given back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from mandor.controllers.node_autoscale import MachineSource
from mandor.model.codec import from_plain
from mandor.model.machine import Machine, PoolScaling
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase, Taint
from mandor.model.pool import NodePool, NodePoolSpec
from mandor.placement.profiles import default_profile
from mandor.provision.base import JoinInfo, MachineOrder
from mandor.provision.fake import FakeProvisioner
from mandor.sim.scripted import ScriptedNode
from mandor.store.base import Put
from tests.scenarios.make import make_node, make_workload
from tests.scenarios.world import World

SMALL: dict[str, Any] = {"cpu": 2, "memory": "4Gi"}
QUICK: dict[str, Any] = {"provisioner": "fake", "max": 4, "idle_after": "1m", "join_within": "2m"}


class SimProvisioner:
    """Creates machines that join after a delay."""

    def __init__(self, world: World) -> None:
        self.world, self.provisioner = world, FakeProvisioner()
        self.provisioner.made, self.provisioner.taken = self._made, self._taken
        self.seconds = 20.0
        self.dead = False
        """Machines are made, and never join."""
        self.asked: list[str] = []

    async def join(self, machine: str, pool: str, seconds: float) -> JoinInfo:
        self.asked.append(machine)
        return JoinInfo(servers=("http://server",), token="secret")

    def _made(self, order: MachineOrder) -> None:
        if not self.dead:
            self.world.start(f"machine {order.id}", self._boot(order))

    async def _boot(self, order: MachineOrder) -> None:
        await self.world.clock.sleep(self.seconds)
        if order.id not in self.provisioner.orders:
            return
        self.world.nodes[order.id] = ScriptedNode(order.id)
        what = order.what
        taints = tuple(map(Taint.parse, what.taints))
        node = make_node(
            order.id,
            phase=NodePhase.UNKNOWN,
            cpu=what.cpu / 1000,
            memory=int(what.memory),
            pool=order.pool,
            labels=what.labels,
            taints=taints,
        )
        await self.world.add(node)

    def _taken(self, order: MachineOrder) -> None:
        if order.id in self.world.nodes:
            self.world.nodes[order.id].alive = False


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    made.checks = [made.check_capacity, made.check_count]
    made.controller_options |= {"profiles": lambda board: {"default": default_profile()}, "restore_seconds": None}
    yard = SimProvisioner(made)
    made.controller_options["machines"] = MachineSource(lambda scaling: yard.provisioner, yard.join)
    made.yard = yard  # type: ignore[attr-defined]
    async with made:
        yield made


def provisioner_of(world: World) -> SimProvisioner:
    found: SimProvisioner = world.yard  # type: ignore[attr-defined]
    return found


async def scale_pool(world: World, name: str = "burst", **fields: Any) -> None:
    spec = from_plain({"autoscale": QUICK | {"kinds": {"small": SMALL}} | fields}, NodePoolSpec)
    found = world.find(NodePool, name, "")
    pool = found.changed(spec=spec) if found is not None else NodePool(meta=Meta(name=name), spec=spec)
    await world.store.commit(Put(pool))


def scaling(world: World, name: str = "burst") -> PoolScaling:
    found = world.find(NodePool, name, "")
    assert found is not None
    return found.status.scaling or PoolScaling()


def machines(world: World, *phases: str) -> list[Machine]:
    return [each for each in scaling(world).machines if not phases or each.phase in phases]


@pytest.mark.req("S2-48", "S0-20")
async def test_work_that_has_no_room_gets_machines_and_idle_ones_go_again(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await scale_pool(world)
    await world.run(30)
    assert not machines(world), "nobody waits"
    await world.apply(make_workload("web", replicas=5, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 5)
    assert len(machines(world)) == 2, "three instances of one core need two machines of two"
    assert len(provisioner_of(world).provisioner.orders) == 2
    assert world.events("MachineOrdered")
    await world.until(lambda: len(world.events("MachineJoined")) == 2)
    await world.apply(make_workload("web", replicas=2, cpu="1"))
    await world.until(lambda: not machines(world), seconds=600)
    assert not provisioner_of(world).provisioner.orders
    assert {each.meta.name for each in world.all(Node)} == {"n1"}
    await world.until(lambda: world.serving_count("web") == 2)
    assert world.events("MachineIdle")
    await world.until(lambda: bool(world.events("MachineGone")))


@pytest.mark.req("S2-48")
async def test_what_no_machine_would_help_orders_none(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await scale_pool(world)
    await world.apply(make_workload("huge", replicas=1, cpu="8"))
    await world.apply(make_workload("picky", replicas=1, cpu="1", where=[{"rule": "disk == ssd"}]))
    await world.apply(make_workload("gated", replicas=3, cpu="1", gates=["later"]))
    await world.run(120)
    assert not machines(world)
    assert not provisioner_of(world).provisioner.calls


async def test_the_kind_is_chosen_that_helps_and_is_filled(world: World) -> None:
    large = {"cpu": 8, "memory": "16Gi", "labels": {"disk": "ssd"}}
    await scale_pool(world, kinds={"small": SMALL, "large": large})
    await world.apply(make_workload("picky", replicas=1, cpu="1", where=[{"rule": "disk == ssd"}]))
    await world.until(lambda: world.serving_count("picky") == 1)
    assert [each.kind for each in machines(world)] == ["large"]
    await world.apply(make_workload("tiny", replicas=1, cpu="1"))
    await world.until(lambda: world.serving_count("tiny") == 1)
    assert [each.kind for each in machines(world)] == ["large"], "there was room"


async def test_many_that_wait_are_packed(world: World) -> None:
    await scale_pool(world, max=20, at_once=20)
    await world.apply(make_workload("web", replicas=20, cpu="500m"))
    await world.until(lambda: world.serving_count("web") == 20)
    assert len(machines(world)) == 5


async def test_never_more_than_the_most_and_no_more_at_once_than_allowed(world: World) -> None:
    await scale_pool(world, max=3, at_once=1)
    most: list[int] = []
    world.checks.append(lambda: most.append(len(machines(world, "Ordered"))))
    world.checks.append(lambda: most.append(-1 if len(machines(world)) <= 3 else 99))
    await world.apply(make_workload("web", replicas=20, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 6)
    await world.run(60)
    assert max(most) == 1
    assert "the pool has its maximum of 3 machines" in scaling(world).message


async def test_the_least_is_kept_whatever_waits(world: World) -> None:
    await scale_pool(world, min=2)
    await world.until(lambda: len(machines(world, "Joined")) == 2)
    await world.run(300)
    assert len(machines(world, "Joined")) == 2
    await scale_pool(world, min=0, max=0)
    await world.until(lambda: not machines(world), seconds=300)


async def test_a_machine_that_never_joins_is_given_back_and_the_next_try_waits(world: World) -> None:
    yard = provisioner_of(world)
    yard.dead = True
    await scale_pool(world, join_within="1m")
    await world.apply(make_workload("web", replicas=1, cpu="1"))
    await world.until(lambda: bool(world.events("MachineFailed")))
    await world.run(30)
    assert not machines(world)
    assert not yard.provisioner.orders
    assert "did not join within 1m" in scaling(world).trouble["small"].message
    yard.dead = False
    created = len(yard.asked)
    await world.run(20)
    assert len(yard.asked) == created, "it waits a minute"
    await world.until(lambda: world.serving_count("web") == 1)
    await world.until(lambda: not scaling(world).trouble)


async def test_an_error_of_a_provisioner_is_reported_and_retried_later(world: World) -> None:
    yard = provisioner_of(world)
    yard.provisioner.trouble = "no more addresses"
    await scale_pool(world)
    await world.apply(make_workload("web", replicas=1, cpu="1"))
    await world.until(lambda: bool(world.events("MachineFailed")))
    await world.run(10)
    assert "no more addresses" in scaling(world).message
    yard.provisioner.trouble = ""
    await world.until(lambda: world.serving_count("web") == 1)


@pytest.mark.req("S2-48", "S0-18")
async def test_a_controller_that_was_restarted_orders_the_same_machines_again(world: World) -> None:
    yard = provisioner_of(world)
    yard.seconds = 60.0
    await scale_pool(world)
    await world.apply(make_workload("web", replicas=4, cpu="1"))
    await world.until(lambda: len(yard.provisioner.orders) == 2)
    await world.kill("controllers")
    await world.kill("their recorder")
    world.start_controllers()
    await world.until(lambda: world.serving_count("web") == 4)
    assert len(yard.provisioner.orders) == 2
    await world.until(lambda: len(machines(world, "Joined")) == 2)
    ids = {machine for verb, machine in yard.provisioner.calls if verb == "create"}
    assert len(ids) == 2
    assert len(yard.provisioner.calls) >= 4, "they were ordered again, by the same ids"


async def test_a_machine_whose_work_fits_elsewhere_is_emptied_within_its_budget(world: World) -> None:
    await world.add_nodes("n1", cpu=2)
    await scale_pool(world)
    await world.apply(make_workload("web", replicas=2, cpu="1", disruption={"max_unavailable": 0}))
    await world.apply(make_workload("more", replicas=2, cpu="1"))
    await world.until(lambda: world.serving_count("web") + world.serving_count("more") == 4)
    await world.until(lambda: len(machines(world, "Joined")) == 1)
    least: list[int] = []
    world.checks.append(lambda: least.append(world.serving_count("web")))
    gone = world.workload("more")
    await world.delete(gone)
    await world.until(lambda: not machines(world), seconds=600)
    assert min(least) >= 2
    assert all(each.node == "n1" for each in world.instances("web"))


async def test_what_is_busy_or_cannot_leave_stays(world: World) -> None:
    await scale_pool(world, idle_after="30s")
    batch: dict[str, Any] = {"type": "batch", "batch": {"completions": 1}, "restart": {"policy": "never"}}
    await world.apply(make_workload("long", cpu="100m", **batch))
    await world.until(lambda: world.serving_count("long") == 1)
    await world.add_nodes("n1", cpu=4)
    await world.run(200)
    assert [each.phase for each in machines(world)] == ["Joined"]


async def test_a_node_that_was_deleted_gives_its_machine_back(world: World) -> None:
    await scale_pool(world, min=1)
    await world.until(lambda: len(machines(world, "Joined")) == 1)
    (machine,) = machines(world)
    node = world.find(Node, machine.id, "")
    assert node is not None
    del world.nodes[machine.id]
    await world.delete(node)
    await world.until(lambda: machine.id not in provisioner_of(world).provisioner.orders)
    await world.until(lambda: len(machines(world, "Joined")) == 1)
    assert machines(world)[0].id != machine.id


async def test_taints_keep_other_instances_off_and_tolerating_ones_get_machines(world: World) -> None:
    kinds = {"gpu": SMALL | {"taints": ["gpu=yes:NoSchedule"]}}
    await scale_pool(world, kinds=kinds)
    await world.apply(make_workload("plain", replicas=1, cpu="1"))
    await world.run(60)
    assert not machines(world)
    tolerate = {"tolerate": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
    await world.apply(make_workload("train", replicas=1, cpu="1", placement=tolerate))
    await world.until(lambda: world.serving_count("train") == 1)
    assert not world.serving_count("plain")
    assert world.store.index.get(Key("node", "", machines(world)[0].id)) is not None


async def test_a_gang_gets_all_the_machines_it_needs_or_none(world: World) -> None:
    await scale_pool(world, max=2)
    await world.apply(make_workload("train", replicas=6, cpu="1", gang={}))
    await world.run(90)
    assert not machines(world), "two machines would not hold six"
    await scale_pool(world, max=3)
    await world.until(lambda: world.serving_count("train") == 6)
    assert len(machines(world)) == 3


async def test_a_machine_that_was_never_made_leaves_no_record(world: World) -> None:
    yard = provisioner_of(world)
    yard.provisioner.unreachable = "the certificate is not trusted"
    await scale_pool(world, min=2)
    await world.until(lambda: bool(world.events("MachineFailed")))
    await world.run(30)
    assert not machines(world)
    assert "the certificate is not trusted" in scaling(world).message
    assert not yard.provisioner.calls
    yard.provisioner.unreachable = ""
    await world.until(lambda: len(machines(world, "Joined")) == 2, seconds=300)


async def test_a_machine_may_exist_from_the_moment_in_which_it_is_requested(world: World) -> None:
    yard = provisioner_of(world)
    seen: list[bool] = []
    yard.provisioner.made = lambda order: seen.extend(each.unmade for each in machines(world) if each.id == order.id)
    await scale_pool(world, min=1)
    await world.until(lambda: bool(seen))
    assert seen == [False]


async def test_a_machine_that_cannot_be_deleted_is_named_with_the_error_and_kept(world: World) -> None:
    yard = provisioner_of(world)
    await scale_pool(world, min=1)
    await world.until(lambda: len(machines(world, "Joined")) == 1)
    yard.provisioner.unreachable = "connection refused"
    (machine,) = machines(world)
    await scale_pool(world, max=0, min=0)
    says = f"{machine.id} cannot be deleted: connection refused"
    await world.until(lambda: says in scaling(world).message, seconds=300)
    assert machines(world, "Leaving"), "it exists, so its record is kept"
    yard.provisioner.unreachable = ""
    await world.until(lambda: not machines(world))
    assert not scaling(world).message


async def test_a_create_whose_outcome_is_unknown_is_followed_by_a_delete(world: World) -> None:
    yard = provisioner_of(world)
    yard.provisioner.trouble = "no answer"
    await scale_pool(world, min=1)
    await world.until(lambda: ("delete", machines_created(yard)) in yard.provisioner.calls)


def machines_created(yard: SimProvisioner) -> str:
    return next((name for verb, name in yard.provisioner.calls if verb == "create"), "")
