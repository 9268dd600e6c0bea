"""Machines of a pool over random luck: never too many, never too few for long, none taken away that is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.controllers.growth_plan import Growth, Offer, Order, expected_node
from mandor.controllers.machine_plan import MachineInputs, plan_machines
from mandor.controllers.need_plan import fits_elsewhere, movable_instances
from mandor.model.codec import from_plain
from mandor.model.instance import Instance
from mandor.model.machine import Machine, MachineKind
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import DrainStatus, Node
from mandor.model.phase import Phase
from mandor.model.pool import NodePool, NodePoolSpec
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.profiles import default_profile
from mandor.store.base import Delete, Put
from tests.scenarios.make import NOW, make_instance, make_node, make_stored_release, make_workload

STEP = 10.0
BRIEFLY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def make_pool(least: int, most: int, at_once: int) -> NodePool:
    scaling = {
        "provisioner": "fake",
        "kinds": {"small": {"cpu": 2, "memory": "4Gi"}, "large": {"cpu": 8, "memory": "16Gi"}},
        "min": least,
        "max": most,
        "at_once": at_once,
        "idle_after": "1m",
        "join_within": "2m",
        "drain_within": "5m",
    }
    return NodePool(meta=Meta(name="burst"), spec=from_plain({"autoscale": scaling}, NodePoolSpec))


@dataclass
class Luck:
    """Faults of the machines in one step."""

    joins: bool = True
    fails: bool = False
    drains: bool = True
    goes: bool = True
    deleted: bool = False
    work: int = 0
    """So many machines more, or fewer, would be needed."""


LUCK = st.builds(
    Luck,
    joins=st.booleans(),
    fails=st.integers(0, 4).map(lambda each: each == 0),
    drains=st.booleans(),
    goes=st.booleans(),
    deleted=st.integers(0, 9).map(lambda each: each == 0),
    work=st.integers(-2, 3),
)


@dataclass
class SimProvisioner:
    """A pool whose machines are made, drained and taken away as luck has it; each holds one loaded of work."""

    pool: NodePool
    now: float = NOW
    nodes: dict[str, Node] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    ids: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    wanted: int = 0
    numbers: count[int] = field(default_factory=count)

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.pool.machines

    def count(self, *phases: str) -> int:
        return sum(each.phase in phases for each in self.machines)

    def step(self, luck: Luck, seconds: float = STEP) -> None:
        self.now += seconds
        self.wanted = max(0, self.wanted + luck.work)
        for machine in self.machines:
            self._befall(machine, luck)
        self._work()
        before = self.machines
        waits = self.wanted > len(self.busy)
        coming = self.count("Ordered")
        missing = max(0, self.wanted - len(self.busy) - coming) if waits else 0
        orders = [Order("burst", "small", (Key("instance", "default", "web"),))] * missing
        seen = MachineInputs(
            nodes=self.nodes,
            needed=lambda node: "work" if node.meta.name in self.busy else "",
            load=lambda node: int(node.meta.name in self.busy),
            failed=self.failed,
            gone=self.gone,
            unmade=frozenset(),
            undeleted={},
            records_unmade=False,
            credentials=lambda name: None,
            work_is_pending=waits,
        )
        draft = plan_machines(self.pool, seen, orders, self.now, lambda: str(next(self.numbers)))
        for write in draft.writes:
            self._carry_out(write)
        self._check(before, missing)

    def _befall(self, machine: Machine, luck: Luck) -> None:
        node = self.nodes.get(machine.id)
        if machine.phase == "Ordered":
            if luck.fails:
                self.failed[machine.id] = "no luck"
            elif luck.joins:
                self.nodes[machine.id] = make_node(machine.id, cpu=2, pool="burst")
        elif machine.phase == "Draining" and node is not None and luck.drains:
            progress = DrainStatus(phase="Drained", since=machine.at)
            self.nodes[machine.id] = node.changed(status=replace(node.status, drain=progress))
        elif machine.phase == "Leaving" and luck.goes:
            self.gone.add(machine.id)
        elif machine.phase == "Joined" and luck.deleted:
            self.nodes.pop(machine.id, None)

    def _work(self) -> None:
        """It goes to machines that take some, and away from those that are gone."""
        open_ = [each.id for each in self.machines if each.phase == "Joined" and each.id in self.nodes]
        self.busy &= set(open_)
        for name in open_:
            if len(self.busy) < self.wanted:
                self.busy.add(name)
        for name in sorted(self.busy)[self.wanted :]:
            self.busy.discard(name)

    def _carry_out(self, write: object) -> None:
        if isinstance(write, Put) and isinstance(write.value, NodePool):
            self.pool = write.value
        elif isinstance(write, Put) and isinstance(write.value, Node):
            node = write.value
            drain = None if node.spec.drain is None else node.status.drain
            self.nodes[node.meta.name] = node.changed(status=replace(node.status, drain=drain))
        elif isinstance(write, Delete):
            self.nodes.pop(write.key.name, None)

    def _check(self, before: tuple[Machine, ...], missing: int) -> None:
        scaling = self.pool.spec.autoscale
        assert scaling is not None
        phases = {each.id: each.phase for each in before}
        fresh = [each for each in self.machines if each.id not in phases]
        assert len(self.machines) <= max(scaling.max, len(before)), "never more than are allowed"
        assert self.count("Ordered") <= max(scaling.at_once, sum(each == "Ordered" for each in phases.values()))
        assert not {each.id for each in fresh} & self.ids, "no name is used twice"
        stay = self.count("Ordered", "Joined") - len(fresh)
        assert len(fresh) <= max(missing, scaling.min - stay), "nothing is ordered twice"
        self.ids |= {each.id for each in fresh}
        drained = [each for each in self.machines if each.phase == "Draining" and phases.get(each.id) == "Joined"]
        over = sum(each in {"Ordered", "Joined"} for each in phases.values()) > scaling.max
        if not over:
            assert not {each.id for each in drained} & self.busy, "what has work stays"
            assert not drained or self.count("Ordered", "Joined") >= scaling.min, "nobody goes below the least"
        gone = set(phases) - {each.id for each in self.machines}
        assert gone <= self.gone, "what was not given back is not forgotten"


@pytest.mark.req("S2-48")
@BRIEFLY
@given(st.integers(0, 3), st.integers(0, 6), st.integers(1, 4), st.lists(LUCK, max_size=40), st.integers(0, 8))
def test_whatever_happens_the_bounds_are_kept_and_all_is_well_once_it_stops(
    least: int, more: int, at_once: int, lucks: list[Luck], wanted: int
) -> None:
    yard = SimProvisioner(make_pool(least, least + more, at_once))
    for luck in lucks:
        yard.step(luck)
    yard.wanted = wanted
    for _ in range(90):
        yard.step(Luck(), 60.0)
    scaling = yard.pool.spec.autoscale
    assert scaling is not None
    assert yard.count("Joined") == len(yard.machines) == max(least, min(wanted, least + more))
    assert len(yard.busy) == min(wanted, least + more), "whoever can have a place has one"
    settled = yard.pool
    yard.step(Luck())
    assert yard.pool == settled, "and then it is over"


# Which machines would help.

SMALL = from_plain({"cpu": 2, "memory": "4Gi"}, MachineKind)
LARGE = from_plain({"cpu": 8, "memory": "16Gi", "labels": {"disk": "ssd"}}, MachineKind)
CPUS = st.sampled_from(["500m", "1", "2", "3", "9"])
WORK = st.lists(st.tuples(CPUS, st.booleans(), st.integers(1, 5)), min_size=1, max_size=4)


def waiting_cluster(nodes: int, work: list[tuple[str, bool, int]]) -> list[Object]:
    found: list[Object] = [make_node(f"n{number}", cpu=2) for number in range(nodes)]
    for number, (cpu, picky, many) in enumerate(work):
        where = [{"rule": "disk == ssd"}] if picky else []
        workload = make_workload(f"w{number}", replicas=many, cpu=cpu, memory="64Mi", where=where)
        release = make_stored_release(workload)
        found += [workload, release]
        found += [
            make_instance(index, Phase.PENDING, workload=f"w{number}", release=release.meta.name)
            for index in range(many)
        ]
    return found


def offers(small: int, large: int) -> list[Offer]:
    """Of two pools, so many each."""
    return [
        Offer("small", "small", expected_node("small", SMALL, []), small),
        Offer("large", "large", expected_node("large", LARGE, []), large),
    ]


def grown(objects: list[Object], rooms: tuple[int, int], underway: list[Node]) -> list[Order]:
    board = ClusterModel(objects)
    asks = [each.request for each in board.waiting()]
    before = {name: board.table.free(name) for name in board.nodes}
    orders = Growth(board, {"default": default_profile()}).plan(asks, offers(*rooms), underway)
    assert {name: board.table.free(name) for name in board.nodes} == before, "nothing of it stays on the board"
    assert [each.request for each in board.waiting()] == asks
    assert not board.table.allocations
    return orders


@pytest.mark.req("S2-48")
@BRIEFLY
@given(st.integers(0, 3), WORK, st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_every_ordered_machine_helps_a_waiting_instance_and_none_is_ordered_twice(
    nodes: int, work: list[tuple[str, bool, int]], rooms: tuple[int, int]
) -> None:
    objects = waiting_cluster(nodes, work)
    orders = grown(objects, rooms, [])
    made = Counter(each.pool for each in orders)
    assert made["small"] <= rooms[0]
    assert made["large"] <= rooms[1]
    helped = [key for each in orders for key in each.helps]
    assert all(each.helps for each in orders), "each places somebody"
    assert len(set(helped)) == len(helped), "nobody is placed twice"
    assert set(helped) <= {each.key for each in objects if isinstance(each, Instance)}


@pytest.mark.req("S2-48")
@BRIEFLY
@given(st.integers(0, 3), CPUS, st.integers(1, 12), st.tuples(st.integers(0, 6), st.integers(0, 6)))
def test_what_is_on_its_way_is_not_ordered_again(nodes: int, cpu: str, many: int, rooms: tuple[int, int]) -> None:
    objects = waiting_cluster(nodes, [(cpu, False, many)])
    orders = grown(objects, rooms, [])
    made = Counter(each.pool for each in orders)
    kinds = {"small": SMALL, "large": LARGE}
    coming = [expected_node(each.pool, kinds[each.kind], [], f"m{n}") for n, each in enumerate(orders)]
    assert grown(objects, (rooms[0] - made["small"], rooms[1] - made["large"]), coming) == []


@BRIEFLY
@given(WORK, st.integers(1, 4))
def test_a_machine_is_not_needed_only_if_all_its_work_fits_elsewhere_and_looking_changes_nothing(
    work: list[tuple[str, bool, int]], nodes: int
) -> None:
    objects = waiting_cluster(nodes, [(cpu, False, many) for cpu, _, many in work])
    leaving = make_node("leaving", cpu=64)
    residents = [
        each.changed(spec=replace(each.spec, node="leaving"), status=replace(each.status, phase=Phase.RUNNING))
        for each in objects
        if isinstance(each, Instance)
    ]
    board = ClusterModel([leaving, *(each for each in objects if not isinstance(each, Instance)), *residents])
    names = [f"n{number}" for number in range(nodes)]
    before = {name: board.table.free(name) for name in [*names, "leaving"]}
    assert {each.key for each in movable_instances(board, "leaving")} == {each.key for each in residents}
    fits = through(fits_elsewhere(board, {"default": default_profile()}, leaving, residents))
    assert {name: board.table.free(name) for name in before} == before
    if fits:
        asked = [board.request(each) for each in residents]
        total = sum(dict(each.shape.wanted)["cpu"] for each in asked if each is not None)
        assert total <= sum(before[name]["cpu"] for name in names), "nothing is left over"


def through(steps: Generator[None, None, bool]) -> bool:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return bool(end.value)


@settings(max_examples=3, deadline=None)
@given(st.integers(200, 230), st.integers(1, 3))
def test_instances_that_no_machine_helps_keep_no_machines_from_others(hopeless: int, many: int) -> None:
    objects = waiting_cluster(0, [("9", False, hopeless), ("1", False, many)])
    (order, *_) = grown(objects, (3, 3), [])
    assert {key.name.rpartition("-")[0] for key in order.helps} == {"w1"}
