"""Daemons on random histories: never two on a node, never more away than may be, and at the end one on each home."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.controllers.daemon_node_index import DaemonNodeIndex
from mandor.controllers.replicas import ClusterView
from mandor.model.group import Group
from mandor.model.instance import UNSCHEDULABLE, Instance, InstanceStatus
from mandor.model.node import Drain, Node, NodePhase, Taint
from mandor.model.phase import Phase
from mandor.model.rollout import RolloutOrders
from mandor.model.workload import Release, Workload
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.store.base import Change
from tests.property.both_ways import stands
from tests.property.test_rollout import BAD, TIMES, RollingCluster, give, orders
from tests.scenarios.make import make_node, make_workload

NODES = ("n1", "n2", "n3", "n4", "n5")


@dataclass
class DaemonCluster(RollingCluster):
    nodes: dict[str, Node] = field(default_factory=lambda: {name: make_node(name) for name in NODES})
    homes: DaemonNodeIndex = field(default_factory=DaemonNodeIndex)
    full: set[str] = field(default_factory=set)
    """Nodes that have no room."""

    def __post_init__(self) -> None:
        self.ready_nodes = set(NODES)
        for node in self.nodes.values():
            self.homes.see(Change(1, None, node))

    def world(self) -> ClusterView:
        return ClusterView(self.now, frozenset(self.ready_nodes), ready_seconds=self.ready_for, site=self.homes.site)

    def set_node(self, name: str, node: Node | None) -> None:
        before = self.nodes.pop(name, None)
        if node is not None:
            self.nodes[name] = node
        known = before or node
        assert known is not None
        self.homes.see(Change(1, before, node))
        self.ready_nodes = {each for each, node in self.nodes.items() if node.status.phase is NodePhase.READY}

    def act(self) -> None:
        for each in self.instances:
            if self.calm or self.chance.random() < 0.4:
                after = self.next_of(each)
                if after is not None:
                    self.write(after)
        if not self.calm and self.chance.random() < 0.3:
            self.trouble(self.chance.choice(NODES))
        self.now += 20 if self.calm else self.chance.choice([0.1, 1, 20, 60])

    def trouble(self, name: str) -> None:
        node, chance = self.nodes.get(name), self.chance.randrange(6)
        if node is None:
            self.set_node(name, make_node(name))
        elif chance == 0:
            self.set_node(name, None)
        elif chance == 1:
            phase = NodePhase.READY if node.status.phase is NodePhase.DOWN else NodePhase.DOWN
            self.set_node(name, node.changed(status=replace(node.status, phase=phase)))
        elif chance == 2:
            role = self.chance.choice(["db", "web"])
            self.set_node(name, node.changed(meta=replace(node.meta, labels={"role": role})))
        elif chance == 3:
            drain = None if node.spec.drain else Drain()
            self.set_node(name, node.changed(spec=replace(node.spec, drain=drain)))
        elif chance == 4:
            taints = () if node.spec.taints else (Taint("a"),)
            self.set_node(name, node.changed(spec=replace(node.spec, taints=taints)))
        else:
            self.full ^= {name}

    def next_of(self, each: Instance) -> Instance | None:
        home = each.spec.home
        if not each.node and not each.phase.over and each.spec.stop is None:
            if home not in self.ready_nodes:
                return None
            if home in self.full:
                return each.reported(InstanceStatus(phase=Phase.PENDING, reason=UNSCHEDULABLE, since=self.now))
            return each.bound(home, at=self.now)
        drained = each.node in self.nodes and self.nodes[each.node].drain is not None
        if drained and each.spec.stop is None and not each.phase.over:
            return each.stopping("drained", at=self.now)
        return super().next_of(each)

    def fate(self, each: Instance) -> Instance | None:
        found = super().fate(each)
        return None if found is not None and each.node not in self.nodes else found

    def check_step(self, workload: Workload, group: Group, before: list[Instance]) -> None:
        after = self.instances
        assert max(Counter(each.spec.home for each in after).values(), default=0) <= 1, "two on a node"
        assert all(each.spec.home and each.node in {"", each.spec.home} for each in after), "each on its own"
        rollout = workload.status.rollout
        if rollout is None:
            return
        target = next(each for each in self.releases if each.meta.name == rollout.target)
        homes = self.homes.site(target, "main").eligible
        at_home = [each for each in before if each.spec.home in homes]
        crowded = [
            each for each in at_home if each.status.reason == UNSCHEDULABLE and each.spec.release != rollout.target
        ]
        least = len(homes) - len(crowded) - group.update.room(len(homes), apart=True)[1]
        left = [each for each in after if each.spec.home in homes]
        were = self.available(at_home, group, rollout.target)
        assert self.available(left, group, rollout.target) >= min(were, least), "too few"

    def calm_down(self) -> None:
        self.full.clear()
        for name in NODES:
            self.set_node(name, make_node(name, labels=self.nodes[name].labels if name in self.nodes else {}))


updates = st.sampled_from(
    [{}, {"max_unavailable": 1}, {"max_unavailable": 3}, {"max_unavailable": "50%"}, {"canary": 1}, {"canary": 2}]
)


def daemon(version: str, update: dict[str, Any], rule: str) -> Workload:
    return make_workload("exp", type="daemon", env={"V": version}, update={**TIMES, **update}, where=[{"rule": rule}])


wishes = st.builds(
    daemon, st.sampled_from(["1", "2", BAD]), updates, st.sampled_from(["role != db", "node exists", "role == db"])
)


@pytest.mark.req("S2-16", "S2-17", "S2-18")
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(wishes, orders), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_whatever_happens_daemons_keep_their_bounds_and_end_up_on_every_home(
    steps: list[tuple[Workload, dict[str, Any]]], seed: int
) -> None:
    cluster = DaemonCluster(random.Random(seed))
    for wish, order in steps:
        workload = cluster.workload
        paused = workload.spec.rollout.paused if workload else False
        cluster.want(wish.changed(spec=replace(wish.spec, rollout=RolloutOrders(paused=paused))))
        for turn in range(cluster.chance.randint(2, 15)):
            cluster.reconcile()
            cluster.act()
            if turn == 1:
                give(cluster, order)
    cluster.calm = True
    cluster.calm_down()
    cluster.order(paused=False)
    cluster.want(daemon("last", {"max_unavailable": 2, "deadline": "never"}, "role != db"))
    for _ in range(400):
        cluster.reconcile()
        cluster.act()
        if settled(cluster):
            return
    raise AssertionError(f"no end: {cluster.workload} {cluster.instances}")


def settled(cluster: DaemonCluster) -> bool:
    workload = cluster.workload
    assert workload is not None
    draft = cluster.planned()
    matching = {name for name, node in cluster.nodes.items() if node.labels.get("role") != "db"}
    serving = {each.node for each in cluster.instances if replicas.serving(each)}
    of_one = len({each.spec.release for each in cluster.instances}) <= 1
    there = serving == matching and len(cluster.instances) == len(matching) and of_one
    assert not there or draft.writes or stands(cluster.seen, cluster.world())
    return there and not draft.writes


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), rule=st.sampled_from(["role != db", "role == db", "node exists"]))
def test_daemon_nodes_updated_by_changes_equal_new_ones(seed: int, rule: str) -> None:
    cluster = DaemonCluster(random.Random(seed))
    cluster.want(daemon("1", {}, rule))
    cluster.reconcile()
    release: Release = cluster.releases[0]
    for _ in range(30):
        cluster.trouble(cluster.chance.choice(NODES))
        anew, kept = (
            DaemonNodes.of(release.spec.groups["main"], cluster.nodes.values()),
            cluster.homes.site(release, "main"),
        )
        assert (kept.eligible, kept.retained, kept.refusals) == (anew.eligible, anew.retained, anew.refusals)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_daemons_that_were_in_place_follow_what_becomes_of_the_nodes(seed: int) -> None:
    cluster = DaemonCluster(random.Random(seed), calm=True)
    cluster.want(daemon("1", {"deadline": "never"}, "role != db"))
    for _ in range(20):
        cluster.reconcile()
        cluster.act()
    assert stands(cluster.seen, cluster.world())
    for _ in range(30):
        cluster.trouble(cluster.chance.choice(NODES))
        cluster.reconcile()
        cluster.act()


def test_the_daemon_of_a_node_that_comes_as_canaries_begin_is_one_of_them() -> None:
    cluster = DaemonCluster(random.Random(1), calm=True)
    cluster.set_node("n5", None)
    cluster.want(daemon("1", {"canary": 1}, "node exists"))
    while not settled(cluster):
        cluster.reconcile()
        cluster.act()
    cluster.want(daemon("2", {"canary": 1}, "node exists"))
    cluster.set_node("n5", make_node("n5"))
    cluster.reconcile()
    assert Counter(each.spec.release for each in cluster.instances) == {"exp.1": 4, "exp.2": 1}
