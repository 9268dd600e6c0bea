"""Volumes on random clusters: one node for each, successors go to it, and the table never loses count."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.meta import Key
from mandor.model.volume import Volume
from mandor.placement.cycle import decide
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.volumes import KnownVolume
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import GI, make_node, make_template

NODES = [f"n{index}" for index in range(4)]
PROFILE = default_profile()
KINDS: list[dict[str, Any]] = [
    {},
    {"own": {"size": "10Gi", "per_instance": True}},
    {"shared": {"size": "20Gi"}},
    {"own": {"size": "5Gi", "per_instance": True}, "shared": {"size": "5Gi"}},
]
SHAPES = {f"w{number}": Shape.of(make_template(cpu="500m", volumes=volumes)) for number, volumes in enumerate(KINDS)}

steps = st.lists(
    st.one_of(
        st.tuples(st.just("place"), st.sampled_from(sorted(SHAPES)), st.integers(0, 3)),
        st.tuples(st.just("end"), st.sampled_from(sorted(SHAPES)), st.integers(0, 3)),
        st.tuples(st.just("node"), st.sampled_from(NODES), st.booleans()),
        st.tuples(st.just("lose"), st.sampled_from(NODES), st.booleans()),
    ),
    max_size=40,
)


class Cluster:
    """A table, and what a scheduler and agents would write about volumes."""

    def __init__(self) -> None:
        self.table = Table()
        self.homes: dict[Key, str] = {}
        """Node of each volume with data."""

    def place(self, workload: str, index: int) -> None:
        request = PlacementRequest(
            Key("instance", "default", f"{workload}-{index}"),
            SHAPES[workload],
            identity=Identity("default", workload, "main"),
        )
        if self.table.allocation(request.key) is not None:
            return
        node = decide(PROFILE, request, self.table.snapshot()).node
        if not node:
            return
        self.table.set_allocation(request.key, node, request.shape, request.identity)
        for wanted in request.local_volumes:
            assert self.homes.setdefault(wanted.key, node) == node, "its data is elsewhere"
            known = KnownVolume(size=int(wanted.spec.size), node=node, made=True, workload=workload)
            self.table.set_volume(wanted.key, known)

    def check(self) -> None:
        volumes = self.table.snapshot().volumes
        for key, home in self.homes.items():
            assert volumes.node_of(key) == home
        for name, node in ((name, self.table.node(name)) for name in NODES):
            if node is None:
                continue
            there = [key for key, home in self.homes.items() if home == name]
            taken = sum(known.size for key in there if (known := volumes.get(key)) is not None)
            assert self.table.free(name)["disk"] == node.allocatable.disk_bytes - taken
            assert self.table.free(name)["disk"] >= 0


@pytest.mark.req("S3-11", "S1-16")
@settings(max_examples=80, deadline=None)
@given(steps)
def test_no_volume_is_on_two_nodes_and_no_disk_is_given_away_twice(steps: list[tuple[str, str, Any]]) -> None:
    cluster = Cluster()
    for name in NODES[:2]:
        cluster.table.set_node(make_node(name, disk=50 * GI))
    for what, name, number in steps:
        if what == "place":
            cluster.place(name, number)
        elif what == "end":
            cluster.table.drop_allocation(Key("instance", "default", f"{name}-{number}"))
        elif what == "node":
            cluster.table.set_node(make_node(name, disk=50 * GI, cordoned=number))
        else:
            cluster.table.remove_node(name)
        cluster.check()


@pytest.mark.req("S3-11")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(SHAPES)), min_size=1, max_size=12), st.randoms())
def test_a_successor_goes_to_the_volume_of_its_name(workloads: list[str], chance: Any) -> None:
    """All instances are placed, end, and are placed again in another order."""
    cluster = Cluster()
    for name in NODES:
        cluster.table.set_node(make_node(name, disk=200 * GI))
    people = sorted({(workload, number % 3) for number, workload in enumerate(workloads)})
    for workload, index in people:
        cluster.place(workload, index)
    first = {key: allocation.node for key, allocation in cluster.table.allocations.items() if allocation.shape.volumes}
    for key in list(cluster.table.allocations):
        cluster.table.drop_allocation(key)
    chance.shuffle(people)
    for workload, index in people:
        cluster.place(workload, index)
    assert {
        key: allocation.node for key, allocation in cluster.table.allocations.items() if allocation.shape.volumes
    } == first
    assert all(key.kind == Volume.kind for key in cluster.homes)
