"""A batch on every node, on random histories: never twice on a node, and at the end once on each matching one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.controllers import replicas
from mandor.model.group import Group
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from tests.property.test_daemon import DaemonCluster
from tests.property.test_plan import Cluster
from tests.scenarios.make import make_node, make_workload


class NodeBatchCluster(DaemonCluster):
    def check_step(self, workload: Workload, group: Group, before: list[Instance]) -> None:
        super().check_step(workload, group, before)
        done = {each.meta.name: each for each in before if each.phase is Phase.SUCCEEDED}
        for each in self.instances:
            earlier = done.get(each.meta.name, each)
            same = earlier.meta.uid == each.meta.uid
            assert same or earlier.spec.release != each.spec.release, f"{each.meta.name} runs a second time"
        batch = workload.spec.batch
        assert batch is not None
        active = [each for each in self.instances if not replicas.ended(each)]
        were = [each for each in before if not replicas.ended(each)]
        assert len(active) <= max(batch.together, len(were)), "more at a time than allowed"

    def fate(self, each: Instance) -> Instance | None:
        found = Cluster.fate(self, each)
        return None if found is not None and each.node not in self.nodes else found


def node_batch(version: str, parallelism: int | None, rule: str) -> Workload:
    batch: dict[str, Any] = {"per_node": True, "retries": 100}
    if parallelism is not None:
        batch["parallelism"] = parallelism
    return make_workload("exp", type="batch", env={"V": version}, batch=batch, where=[{"rule": rule}])


wishes = st.builds(
    node_batch,
    st.sampled_from(["1", "2"]),
    st.sampled_from([None, 1, 2]),
    st.sampled_from(["role != db", "node exists", "role == db"]),
)


@pytest.mark.req("S2-16")
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(wishes, min_size=1, max_size=4), seed=st.integers(0, 2**32))
def test_every_matching_node_runs_a_release_once_whatever_happens(steps: list[Workload], seed: int) -> None:
    cluster = NodeBatchCluster(random.Random(seed))
    for wish in steps:
        cluster.want(wish)
        for _ in range(cluster.chance.randint(2, 15)):
            cluster.reconcile()
            cluster.act()
    cluster.calm = True
    cluster.calm_down()
    cluster.want(node_batch("last", 2, "role != db"))
    for _ in range(400):
        cluster.reconcile()
        cluster.act()
        if finished(cluster):
            break
    else:
        raise AssertionError(f"no end: {cluster.workload} {cluster.instances}")
    joined = make_node("n9")
    cluster.set_node("n9", joined)
    cluster.reconcile()
    assert [each.meta.name for each in cluster.instances if each.phase is Phase.PENDING] == ["exp-n9"]


def finished(cluster: NodeBatchCluster) -> bool:
    workload = cluster.workload
    assert workload is not None
    status, matching = workload.status, {n for n, node in cluster.nodes.items() if node.labels.get("role") != "db"}
    done = {each.node for each in cluster.instances if each.phase is Phase.SUCCEEDED}
    if status.phase != "Succeeded" or cluster.planned().writes:
        return False
    assert (status.succeeded, status.wanted) == (len(done), len(done))
    assert matching <= done
    return True
