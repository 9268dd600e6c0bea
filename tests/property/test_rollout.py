"""Roll-outs on random histories: never too many, never too few because of them, and always an end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.controllers import replicas as rules
from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView
from mandor.controllers.workload_plan import plan
from mandor.model.group import Group
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.phase import Phase
from mandor.model.rollout import RolloutOrders
from mandor.model.workload import Workload
from mandor.store.base import Put
from tests.property.both_ways import check_plans
from tests.property.test_plan import NODES, Cluster
from tests.scenarios.make import make_workload

BAD = "bad"
"""Of this version no instance is ever ready."""


@dataclass
class RollingCluster(Cluster):
    ready_since: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def world(self) -> ClusterView:
        return ClusterView(self.now, frozenset(self.ready_nodes), ready_seconds=self.ready_for)

    def ready_for(self, instance: Instance) -> float:
        return self.now - self.ready_since.setdefault(instance.meta.uid, self.now)

    def planned(self) -> Draft:
        remembered = dict(self.ready_since)
        check_plans(self.seen, self.world())
        self.ready_since = remembered
        return plan(self.seen, self.world())

    def bad(self, instance: Instance) -> bool:
        release = next(each for each in self.releases if each.meta.name == instance.spec.release)
        return release.spec.groups["main"].tasks["main"].env.get("V") == BAD

    def next_of(self, each: Instance) -> Instance | None:
        after = super().next_of(each)
        if after is not None and after.phase is Phase.RUNNING and self.bad(after):
            after = after.changed(status=InstanceStatus(phase=Phase.RUNNING, ready=False, since=self.now))
        if after is not None and not after.status.ready:
            self.ready_since.pop(each.meta.uid, None)
        return after

    def order(self, **orders: Any) -> None:
        workload = self.workload
        assert workload is not None
        given = replace(workload.spec.rollout, **orders)
        self.write(workload.changed(spec=replace(workload.spec, rollout=given)))

    def reconcile(self) -> None:
        before = self.instances
        draft = self.planned()
        keys = [write.key for write in draft.writes]
        assert len(keys) == len(set(keys)), "one object is written twice"
        for write in draft.writes:
            if isinstance(write, Put):
                self.write(write.value)
            else:
                del self.objects[write.key]
        self.notes += [note.reason for note in draft.notes]
        workload = self.workload
        assert workload is not None
        self.check_step(workload, workload.spec.groups["main"], before)
        self.check_made({each.meta.uid for each in self.instances} - {each.meta.uid for each in before})

    def check_made(self, uids: set[str]) -> None:
        """Nobody who was just made goes again though nothing has happened."""
        if uids:
            again = self.planned()
            made = {each.key for each in self.instances if each.meta.uid in uids}
            assert not made & {write.key for write in again.writes}, "made in vain"

    def check_step(self, workload: Workload, group: Group, before: list[Instance]) -> None:
        surge, away = group.update_room()
        most = group.count + max(surge, group.update.canaries(group.count))
        alive = [each for each in self.instances if not rules.ended(each)]
        earlier = [each for each in before if not rules.ended(each)]
        assert len(alive) <= max(most, len(earlier)), "too many"
        if workload.status.rollout is None:
            return
        target = workload.status.rollout.target
        if all(each.spec.release == target for each in before):
            return  # nothing is updated: somebody only wants fewer
        least = group.count - away
        assert self.available(alive, group, target) >= min(self.available(earlier, group, target), least), "too few"

    def available(self, instances: list[Instance], group: Group, target: str) -> int:
        serving = [each for each in instances if rules.serving(each)]
        return sum(each.spec.release != target or self.ready_for(each) >= group.update.min_healthy for each in serving)

    def quiet(self) -> bool:
        draft = self.planned()
        return not draft.writes and draft.again_seconds is None

    def settle(self) -> Workload:
        """No more faults, nobody holds anything back: it comes to an end."""
        self.calm = True
        self.ready_nodes = set(NODES)
        self.order(paused=False)
        for _ in range(1500):
            self.reconcile()
            self.act()
            workload = self.workload
            assert workload is not None
            rollout = workload.status.rollout
            if rollout is not None and rollout.phase == "Waiting":
                self.order(promoted=rollout.release)
            idle = all(each.phase is Phase.RUNNING for each in self.instances)
            if idle and self.quiet() and rollout is not None and not rollout.ongoing:
                return workload
        raise AssertionError(f"no end: {self.workload}")


TIMES = {"min_healthy": "5s", "deadline": "1m"}
updates = st.sampled_from(
    [
        {},
        {"max_surge": 2},
        {"max_surge": 1, "max_unavailable": 1},
        {"max_surge": "50%", "max_unavailable": "50%"},
        {"order": "stop-first"},
        {"max_surge": 0, "max_unavailable": 2},
        {"canary": 1},
        {"canary": 1, "auto_promote": True, "max_unavailable": 1},
        {"strategy": "canary", "order": "stop-first"},
        {"strategy": "blue-green"},
        {"strategy": "blue-green", "auto_promote": True},
        {"auto_rollback": False},
    ]
)


def service(replicas: int, version: str, update: dict[str, Any], *, replace_lost: bool = True) -> Workload:
    return make_workload(
        "web",
        replicas=replicas,
        env={"V": version},
        update={**TIMES, **update},
        disconnect={"replace": replace_lost},
    )


wishes = st.builds(
    service,
    st.integers(1, 5),
    st.sampled_from(["1", "2", BAD]),
    updates,
    replace_lost=st.booleans(),
)
orders = st.sampled_from([{}, {"paused": True}, {"paused": False}, {"promote": True}, {"abort": True}])


def live(cluster: RollingCluster, steps: list[tuple[Workload, dict[str, Any]]]) -> None:
    for wish, order in steps:
        workload = cluster.workload
        kept = workload.spec.rollout if workload else RolloutOrders()
        cluster.want(wish.changed(spec=replace(wish.spec, rollout=RolloutOrders(paused=kept.paused))))
        for turn in range(cluster.chance.randint(2, 12)):
            cluster.reconcile()
            cluster.act()
            if turn == 1:
                give(cluster, order)


def give(cluster: RollingCluster, order: dict[str, Any]) -> None:
    workload = cluster.workload
    rollout = workload.status.rollout if workload else None
    if "paused" in order:
        cluster.order(**order)
    elif order and rollout is not None:
        cluster.order(**{"promoted" if "promote" in order else "aborted": rollout.release})


@pytest.mark.req("S2-16", "S2-17", "S2-18")
@settings(max_examples=200, deadline=None)
@given(steps=st.lists(st.tuples(wishes, orders), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_whatever_happens_a_roll_out_keeps_its_bounds_and_ends(
    steps: list[tuple[Workload, dict[str, Any]]], seed: int
) -> None:
    cluster = RollingCluster(random.Random(seed))
    live(cluster, steps)
    workload = cluster.settle()
    rollout, group = workload.status.rollout, workload.spec.groups["main"]
    assert rollout is not None
    serving = [each for each in cluster.instances if rules.serving(each)]
    if rollout.phase in {"Done", "RolledBack"}:
        assert len(serving) == len(cluster.instances) == group.count
        assert {each.spec.release for each in serving} == {rollout.target}
        assert rollout.proven[-1] == rollout.target
    else:
        assert rollout.phase == "Failed"
        assert rollout.failure


@settings(max_examples=100, deadline=None)
@given(replicas=st.integers(1, 6), update=updates, seed=st.integers(0, 2**32), calm=st.booleans())
def test_an_unhealthy_release_is_rolled_back_once_without_unavailability(
    replicas: int, update: dict[str, Any], seed: int, calm: bool
) -> None:
    cluster = RollingCluster(random.Random(seed))
    cluster.want(service(replicas, "1", update))
    cluster.settle()
    cluster.calm = calm
    cluster.want(service(replicas, BAD, update))
    for _ in range(30):
        cluster.reconcile()
        cluster.act()
    workload = cluster.settle()
    rollout = workload.status.rollout
    assert rollout is not None
    assert not [each for each in cluster.instances if rules.serving(each) and each.spec.release != "web.1"]
    if update.get("auto_rollback", True):
        assert (rollout.phase, rollout.release, rollout.target) == ("RolledBack", "web.2", "web.1")
        assert cluster.notes.count("RollingBack") == 1
        assert len(cluster.instances) == replicas
    else:
        assert (rollout.phase, rollout.target) == ("Failed", "web.2")
        least = replicas - workload.spec.groups["main"].update_room()[1]
        assert sum(rules.serving(each) for each in cluster.instances) >= least
    before = cluster.revision
    for _ in range(20):
        cluster.reconcile()
        cluster.act()
    assert cluster.revision == before, "and that was all"


def test_deleted_instances_are_replaced_up_to_the_count() -> None:
    cluster = RollingCluster(random.Random(1), calm=True)
    cluster.want(service(5, "1", {"canary": 1}))
    cluster.settle()
    wish = service(4, "2", {"canary": 1})
    cluster.want(wish.changed(spec=replace(wish.spec, rollout=RolloutOrders(paused=True))))
    for each in cluster.instances[:2]:
        stopped = each.stopping("deleted by user")
        cluster.write(stopped.changed(status=replace(each.status, phase=Phase.STOPPED, ready=False)))
    cluster.reconcile()
    assert [each.phase for each in cluster.instances].count(Phase.RUNNING) == 3
    assert len(cluster.instances) == 4
