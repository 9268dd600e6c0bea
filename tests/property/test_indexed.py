"""Indexed batches on random histories: each index succeeds once, whatever becomes of its instance."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.lib.ranges import parse
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from tests.property.test_plan import NODES, Cluster
from tests.scenarios.make import make_workload


@dataclass
class IndexedCluster(Cluster):
    successes: Counter[int] = field(default_factory=Counter)

    def act(self) -> None:
        """Somebody tidies up: what has succeeded, and is told so, is taken away."""
        workload = self.workload
        assert workload is not None
        told = parse(workload.status.indices.get("main", ""))
        for each in self.instances:
            if each.phase is Phase.SUCCEEDED and each.spec.index in told and self.chance.random() < 0.5:
                del self.objects[each.key]
        super().act()

    def next_of(self, each: Instance) -> Instance | None:
        after = super().next_of(each)
        if after is not None and after.phase is Phase.SUCCEEDED:
            self.successes[each.spec.index] += 1
        return after


@settings(max_examples=100, deadline=None)
@given(completions=st.integers(1, 8), parallelism=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_each_index_succeeds_exactly_once(completions: int, parallelism: int, seed: int) -> None:
    cluster = IndexedCluster(random.Random(seed))
    batch = {"completions": completions, "parallelism": parallelism, "retries": 1000, "indexed": True}
    cluster.want(make_workload("web", type="batch", batch=batch))
    for _ in range(20):
        cluster.reconcile()
        cluster.act()
    cluster.calm = True
    cluster.ready_nodes = set(NODES)
    for _ in range(500):
        cluster.reconcile()
        cluster.act()
        workload = cluster.workload
        assert workload is not None
        if workload.status.phase == "Succeeded":
            break
    assert cluster.successes == dict.fromkeys(range(completions), 1)
    assert workload is not None
    assert parse(workload.status.indices["main"]) == set(range(completions))
