"""Fast decisions equal plain ones, for every built-in plugin and over random histories of a cluster.

Fast decisions are made as in the scheduler, with its cache of refusals. Plain ones call every plugin for every node.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.workload import make_release
from mandor.placement.built_in import DEFAULTS, OPTIONAL
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision, Moment
from mandor.placement.fast import FAST
from mandor.placement.framework.capacity_columns import EXACT_BELOW
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity, Selector
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.points import whole_part
from mandor.placement.framework.post_filters import ProfileFilters
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.tie_break import tie_breaks
from mandor.placement.framework.watch import Unwatched
from mandor.placement.gang import GangDecision, GangTrial
from mandor.placement.plugin_reach import plan
from mandor.placement.plugins.node_resources_balanced_allocation import (
    NodeResourcesBalancedAllocation,
    NodeResourcesBalancedAllocationArgs,
)
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.table import Table
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.deciding import Deciding, DecisionInProgress
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.watchdog import Watchdog
from tests.property.histories import CHANGES, UNSHRUNK, History
from tests.property.profile_pairs import PROFILE_NAMES, WAYS
from tests.property.tables import NAMES
from tests.scenarios.make import make_node, make_template, make_workload

BATCHED = ["default", "first wins", "weights", "huge weights", "without fit", "without balance", "all of them"]
"""Profiles that decide replicas in a batch."""
SETTLED = AllocationTerms(Rank(3), born=1.0)


def key(index: int) -> Key:
    return Key(Instance.kind, "default", f"web-{index}")


def said(decision: Decision) -> tuple[object, ...]:
    """Return all fields but the blamed plugins, as both profiles have plugins of their own."""
    found = decision.key, decision.node, decision.relaxed, decision.message, decision.fault, decision.reason
    return *found, decision.retry_on, decision.nominated, decision.victims, decision.displaces, decision.again


def said_of_gang(decision: GangDecision) -> tuple[object, ...]:
    refused = None if decision.refused is None else said(decision.refused)
    placed, nominated = ([(each.key, said(each)) for each in some] for some in (decision.placed, decision.nominated))
    return placed, nominated, refused, decision.fitted, decision.how, decision.fault, decision.message


def run_alone(work: Coroutine[Any, Any, Decision | None]) -> Decision | None:
    """Run a coroutine that only lets other tasks run; there are none."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            found: Decision | None = end.value
            return found


class SchedulerDecisions:
    """The deciding part of a scheduler, on the table of a history."""

    def __init__(self, history: History) -> None:
        self.moment = Moment()
        chance, self._watchdog = history.chance, Watchdog()
        view = SimpleNamespace(table=history.model.table, state=history.model)
        nominations = SimpleNamespace(moment=lambda _: self.moment)
        tracing = SimpleNamespace(affords=lambda *_: chance.random() < 0.5, following=lambda _: nullcontext())
        queue, log = SchedulingQueue(PrioritySort()), SimpleNamespace()
        parts: list[Any] = [view, queue, self._watchdog, SchedulerMetrics(), nominations, log, tracing]
        self._deciding = Deciding(*parts)
        self._deciding._fast.few_nodes = chance.choice([0, 0, 3])

    def decide(self, profile: Profile, request: PlacementRequest, *, traced: bool) -> Decision:
        self._watchdog.trail = [] if traced else None
        made: Decision | DecisionInProgress | None = self._deciding.begin(Attempt(request, "uid", 0.0), profile)
        if isinstance(made, DecisionInProgress):
            made = run_alone(self._deciding.finish(made))
        assert made is not None
        return made


class Course(History):
    """A random history in which each decision is made the fast way and the plain way."""

    def __init__(self, data: st.DataObject, name: str) -> None:
        super().__init__(data)
        self.fast, self.plain = WAYS[name]
        self.scheduler = SchedulerDecisions(self)
        self.table = self.model.table

    def step(self) -> None:
        what = self.chance.choice(["change"] * 4 + ["decide"] * 6 + ["gang", "gang", "burst", "trial"])
        if what == "change":
            self.change()
        elif what == "decide":
            self.decide_pending(self.chance.randint(1, 4))
        elif what == "gang":
            self.decide_gang()
        elif what == "burst":
            self.burst(self.chance.choice([5, 30, 90]))
        else:
            with self.table.trial():
                for each in self.pending[:3]:
                    self.table.set_allocation(each.key, self.chance.choice(NAMES), self.request(each).shape)
                for each in self.pending[3:5]:
                    self.compare(self.request(each))

    def request(self, instance: Instance) -> PlacementRequest:
        made = self.model.request(instance)
        assert made is not None
        return made

    def compare(self, request: PlacementRequest) -> Decision:
        """Decide without cached refusals in each way; return the plain decision."""
        nominated, moment = self.model.held(request.key), self.scheduler.moment
        expected = decide(self.plain, request, self.table.snapshot(), nominated=nominated, moment=moment, fast=None)
        for fast in (FAST, None):
            nodes = self.table.snapshot()
            found = decide(self.fast, request, nodes, nominated=nominated, moment=moment, fast=fast)
            assert said(found) == said(expected)
        assert expected.fault == ""
        return expected

    def decide_pending(self, count: int) -> None:
        """Decide several pending instances, mostly replicas of one workload; bind or nominate some of them."""
        for each in self.chance.sample(self.pending, min(count, len(self.pending))):
            self.scheduler.moment = Moment(3.0, self.chance.choice([0.0, 0.0, 10.0]))
            expected = self.decide(each, traced=self.chance.randint(0, 4) == 0)
            self.check_dry_run(self.request(each))
            if self.chance.randint(0, 3) == 0:
                continue  # the decision is lost
            if expected.node:
                variant = expected.request.shape.variant if expected.request is not None else 0
                self.bind(each, expected.node, variant)
            elif expected.nominated:
                self.nominate(each, expected.nominated)

    def decide(self, instance: Instance, *, traced: bool) -> Decision:
        """Decide as the scheduler does, and compare; return the decision."""
        request = self.request(instance)
        expected = self.compare(request)
        assert said(self.scheduler.decide(self.fast, request, traced=traced)) == said(expected)
        return expected

    def add_hopeless(self) -> Instance:
        """Add a pending instance that fits on no node."""
        workload = make_workload("huge", memory=10**15)
        self.put(workload)
        self.put(make_release(workload, 1))
        meta = Meta(name="huge-0", namespace="default", uid="huge")
        spec = InstanceSpec(workload="huge", release="huge.1", index=0)
        made = Instance(meta=meta, spec=spec, status=InstanceStatus(phase=Phase.PENDING))
        self.put(made)
        return made

    def check_dry_run(self, request: PlacementRequest) -> None:
        fast, plain = (
            ProfileFilters(each, request, self.table.snapshot(), Unwatched(), quick=FAST.first)
            for each in (self.fast, self.plain)
        )
        assert fast.place() == plain.place()

    def decide_gang(self) -> None:
        members = [each for each in self.pending if each.spec.workload == "mpi"]
        if not members:
            self.add_instances("mpi", 3)
            return
        requests, least = [self.request(each) for each in members], self.chance.randint(1, len(members))
        fast, plain = (
            self.run_gang(GangTrial(each, requests, self.table, least=least, moment=self.scheduler.moment))
            for each in (self.fast, self.plain)
        )
        assert said_of_gang(fast) == said_of_gang(plain)
        by_key = {each.key: each for each in members}
        for each in plain.placed:
            self.bind(by_key[each.key], each.node)

    def run_gang(self, trial: GangTrial) -> GangDecision:
        most, found = self.chance.randint(1, 5), None
        while found is None:
            found = trial.step(most)
        return found

    def burst(self, count: int) -> None:
        """Place and remove many instances of a workload."""
        made = []
        for index in range(count):
            meta = Meta(name=f"burst-{index}", namespace="default", uid="burst")
            spec = InstanceSpec(workload="web", release="web.1", index=index, node=NAMES[index % len(NAMES)])
            made.append(Instance(meta=meta, spec=spec, status=InstanceStatus(phase=Phase.RUNNING)))
            self.put(made[-1])
        for each in made[::2]:
            self.remove(each.key)


def run_course(data: st.DataObject, name: str) -> None:
    course = Course(data, name)
    for _ in range(course.chance.randint(3, 25)):
        course.step()


@pytest.mark.req("S3-20")
@pytest.mark.parametrize("name", PROFILE_NAMES)
@settings(max_examples=15, deadline=None, phases=UNSHRUNK)
@given(data=st.data())
def test_fast_decisions_equal_plain_ones(name: str, data: st.DataObject) -> None:
    run_course(data, name)


@settings(max_examples=100, deadline=None, phases=UNSHRUNK)
@given(data=st.data())
def test_fast_decisions_of_the_default_profile_equal_plain_ones(data: st.DataObject) -> None:
    run_course(data, "default")


@settings(max_examples=25, deadline=None, phases=UNSHRUNK)
@pytest.mark.parametrize("change", dict.fromkeys(CHANGES), ids=lambda each: each.__name__)
@given(data=st.data())
def test_no_cached_refusal_outlives_a_change(change: Any, data: st.DataObject) -> None:
    """Decide all pending instances, make a change, and decide them again.

    In between, an instance that fits nowhere is decided in a trace, which does not read the cache.
    """
    course = Course(data, "default")
    hopeless = course.add_hopeless()
    for name in ("web", "db"):
        course.add_instances(name, 4)
    for _ in range(4):
        course.decide_pending(8)
        for _ in range(course.chance.randint(1, 3)):
            change(course)
        if course.chance.random() < 0.7 and course.model.request(hopeless) is not None:
            course.decide(hopeless, traced=True)
        course.decide_pending(8)


def test_every_plugin_of_the_package_is_in_one_of_these_profiles() -> None:
    used = {each.plugin.name for fast, _ in WAYS.values() for each in fast.enabled}
    assert used >= {cls.name for cls, _ in DEFAULTS} | {cls.name for cls in OPTIONAL}


# Replica batches.


def read_all(table: Table, identity: Identity) -> list[object]:
    """Return everything that can be read from a table."""
    nodes = table.snapshot()
    numbers = (
        nodes.free,
        nodes.counted,
        nodes.instances,
        nodes.machines,
        nodes.turns,
        nodes._capacity_columns.shown,
    )
    group = Selector(frozenset({identity.namespace}), identity.workload)
    used = nodes.quotas.used(identity.namespace)
    keys = [(node.meta.name, sorted(table.keys_on(node.meta.name))) for node in nodes.nodes]
    levels = [(each.priority, each.taken.tolist()) for each in nodes.occupancy.levels(100)]
    return [
        *([each.tolist() for each in numbers]),
        nodes.topology.domains(group, "node").by_node.tolist(),
        {name: used.get(name) for name in ("cpu", "instances")},
        keys,
        levels,
        dict(table.allocations),
        dict(nodes.wanted),
        nodes.occupancy.lowest(),
    ]


def decide_each(course: Course, request: PlacementRequest, count: int) -> tuple[list[str], list[object]]:
    """Return the nodes of single plain decisions, and the state of the table after them."""
    found: list[str] = []
    with course.table.trial():
        for index in range(count):
            each = structs.replace(request, key=key(10_000 + index))
            decision = decide(course.plain, each, course.table.snapshot(), fast=None)
            if not decision.node or decision.relaxed:  # a replica that gives a rule up is not part of a batch
                break
            found.append(decision.node)
            course.table.set_allocation(each.key, decision.node, request.shape, request.identity, SETTLED)
        return found, read_all(course.table, request.identity)


def decide_batch(course: Course, request: PlacementRequest, count: int) -> tuple[list[str], list[object]]:
    table = course.table
    slots = FAST.replicas(course.fast, request, table.snapshot(), count, Unwatched())
    keys = [key(10_000 + index) for index in range(len(slots))]
    if slots:
        table.set_allocations(slots, keys, request.shape, request.identity, [SETTLED] * len(slots))
    found = [table.nodes[slot].meta.name for slot in slots]
    now = read_all(table, request.identity)
    for each in keys:
        table.drop_allocation(each)
    return found, now


def compare_batch(course: Course) -> None:
    """Compare a batch with single decisions, if a batch is possible."""
    pending = course.pending
    if not pending:
        course.add_instances("web", 1)
        return
    request = structs.replace(course.request(course.chance.choice(pending)), key=key(9_999))
    first = decide(course.fast, request, course.table.snapshot())
    nodes = course.table.snapshot()
    possible = first.node and not first.relaxed and request.shape.takes_room_alone(request.identity)
    if possible and nodes.occupancy.lowest_held() is None and FAST.foresees(course.fast, request, nodes):
        count = course.chance.randint(1, 40)
        expected = decide_each(course, request, count)
        assert decide_batch(course, request, count) == expected


def run_batches(data: st.DataObject, name: str) -> None:
    course = Course(data, name)
    for _ in range(course.chance.randint(1, 8)):
        course.step()
        compare_batch(course)


@pytest.mark.req("S3-20")
@pytest.mark.parametrize("name", BATCHED)
@settings(max_examples=15, deadline=None, phases=UNSHRUNK)
@given(data=st.data())
def test_a_replica_batch_equals_single_decisions(name: str, data: st.DataObject) -> None:
    run_batches(data, name)


@settings(max_examples=40, deadline=None, phases=UNSHRUNK)
@given(data=st.data())
def test_a_replica_batch_of_the_default_profile_equals_single_decisions(data: st.DataObject) -> None:
    run_batches(data, "default")


# Numbers.


whole = st.integers(0, EXACT_BELOW - 1)


@settings(max_examples=300, deadline=None)
@given(capacity=st.integers(1, EXACT_BELOW - 1), taken=st.integers(0, 2**53), data=st.data())
@example(capacity=EXACT_BELOW - 1, taken=1, data=None)
def test_floating_point_gives_the_whole_part_that_whole_numbers_give(
    capacity: int, taken: int, data: st.DataObject | None
) -> None:
    left = max(capacity - taken % (capacity + 1), 0)
    near = [left, max(0, capacity - 1), capacity, 0, 1, capacity // 3, 2 * capacity // 3]
    if data is not None:  # quotients as close below a whole number as can be
        near.append(data.draw(st.integers(0, 100)) * capacity // 100)
    for each in near:
        assert int(float(100 * each) / float(capacity)) == 100 * each // capacity
    dividends = np.array([100 * each for each in near], dtype=np.int64)
    assert whole_part(dividends, capacity).tolist() == [100 * each // capacity for each in near]


@settings(max_examples=200, deadline=None)
@given(
    cpu=st.lists(whole, min_size=4, max_size=4),
    memory=st.lists(whole, min_size=4, max_size=4),
    formula=st.sampled_from(["change", "state"]),
)
def test_resource_formulas_equal_the_scores_of_their_plugins(
    cpu: list[int], memory: list[int], formula: Literal["change", "state"]
) -> None:
    """Capacity, two that are placed, and one that asks; as large and as odd as they may be."""
    table = Table()
    table.set_node(make_node("n0", cpu=max(cpu) / 1000, memory=max(memory)))
    for index in range(3):
        shape = Shape.of(make_template(cpu=f"{cpu[index] // 4}m", memory=memory[index] // 4))
        table.set_allocation(key(index), "n0", shape)
    request = PlacementRequest(key(9), Shape.of(make_template(cpu=f"{cpu[3] // 4}m", memory=memory[3] // 4)))
    seen, everyone = table.snapshot(), np.ones(1, dtype=np.bool_)
    profile = WAYS["weights" if formula == "change" else "balance as it is"][0]
    usual = plan(profile, CycleState(), request, seen, Unwatched()).formulas
    if usual is None:
        assert 0 in {max(cpu), max(memory)}, "only a node without CPU or memory is judged otherwise"
        return
    fit = NodeResourcesFit()
    balanced = NodeResourcesBalancedAllocation(NodeResourcesBalancedAllocationArgs(formula=formula))
    expected = 5 * int(fit.score(CycleState(), request, seen, everyone)[0])
    if any(name in {"cpu", "memory"} for name, _ in request.shape.wanted):
        expected += 3 * int(balanced.score(CycleState(), request, seen, everyone)[0])
    if not fit.filter(CycleState(), request, seen)[0]:
        expected = -1
    kind = np.dtype(np.int32)
    at = np.zeros(64, dtype=np.intp)
    assert usual.one(seen, 0) == expected
    assert usual.all(seen, kind).tolist() == [expected]
    assert usual.some(seen, at, kind).tolist() == [expected] * 64
    assert usual.some(seen, at[:3], kind).tolist() == [expected] * 3


@settings(deadline=None)
@given(count=st.integers(1, 300), workload=st.text(max_size=5))
def test_no_two_nodes_have_the_same_lot(count: int, workload: str) -> None:
    order = np.random.default_rng(count).permutation(count).astype(np.uint32)
    assert len(set(tie_breaks(Identity("default", workload, "main"), order, count).tolist())) == count
