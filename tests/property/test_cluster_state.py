"""A cluster state that was built change by change equals one that was built from a single listing."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from mandor.model.meta import Key
from mandor.model.workload import Workload
from mandor.placement.allocation import Allocation
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.conversion import NOTHING
from mandor.placement.cycle import decide
from mandor.placement.framework.identity import Selector
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from tests.property.histories import NAMESPACES, UNSHRUNK, History

PROFILE = default_profile()
OVER = ("node", "zone", "rack")


def read_all(model: ClusterModel) -> dict[str, Any]:
    """Return everything that a state counts, by name: the order of nodes in the table may differ."""
    table, nodes = model.table, model.table.snapshot()
    names = [node.meta.name for node in nodes.nodes]
    occupancy, identities = nodes.occupancy, {each.identity for each in table.allocations.values()}
    columns = {
        "instances": nodes.instances,
        "machines": nodes.machines,
        "CPU counted": nodes.counted[0],
        "memory counted": nodes.counted[1],
        "ports left": nodes.ports_left,
    }
    for workload, namespace in NAMESPACES.items():
        selector = Selector(frozenset({namespace}), workload)
        columns |= {f"{workload} over {over}": nodes.topology.domains(selector, over).at_nodes for over in OVER}
    return {
        "nodes": {name: table.node(name) for name in names},
        "free": {(name, what): left for name in names for what, left in table.free(name).items() if left},
        "columns": {what: dict(zip(names, column.tolist(), strict=True)) for what, column in columns.items()},
        "allocations": {key: _fields(each) for key, each in table.allocations.items()},
        "quotas": {
            (namespace, named): {what: used for what, used in nodes.quotas.used(namespace, named).items() if used}
            for namespace in ("default", "other")
            for named in ("", "high")
        },
        "limits": {each: nodes.quotas.of(each, each.namespace) for each in identities},
        "reservations": {each.key: each for each in nodes.reservations},
        "allowed": {each: occupancy.allowed(each) for each in identities},
        "held": sorted((node, each.key) for node, each in occupancy.held()),
        "stopping": sorted((node, each.key) for node, each in occupancy.stopping()),
        "wanted": dict(nodes.wanted),
        "requests": {each.request.key: _request_fields(each.request) for each in model.waiting()},
        "instances of workloads": {
            workload: sorted(each.key for each in model.of(Key(Workload.kind, namespace, workload)))
            for workload, namespace in NAMESPACES.items()
        },
    }


def _fields(allocation: Allocation) -> tuple[object, ...]:
    return allocation.node, _shape_fields(allocation.shape), allocation.identity, allocation.terms, allocation.ports


def _request_fields(request: PlacementRequest) -> tuple[object, ...]:
    return _shape_fields(request.shape), structs.replace(request, shape=NOTHING)


def _shape_fields(shape: Shape) -> list[object]:
    """Return the fields of a shape; shapes are equal only if they are the same object."""
    return [getattr(shape, each.name) for each in fields(shape) if each.name not in {"known", "affinity_cache"}]


@pytest.mark.req("S3-20")
@settings(max_examples=100, deadline=None, phases=UNSHRUNK)
@given(data=st.data())
def test_a_state_built_change_by_change_equals_one_built_from_a_listing(data: st.DataObject) -> None:
    history = History(data)
    for _ in range(history.chance.randint(1, 50)):
        history.change()
        for each in history.pending[: history.chance.randint(0, 3)]:
            request = history.model.request(each)
            assert request is not None
            nominated = history.model.held(each.key)
            found = decide(PROFILE, request, history.model.table.snapshot(), nominated=nominated)
            if found.node:
                history.bind(each, found.node)
    anew = history.anew()
    listed = read_all(anew)
    for what, found in read_all(history.model).items():
        assert found == listed[what], what
    for waiting in anew.waiting():
        request = waiting.request
        first, again = (
            decide(PROFILE, request, each.table.snapshot(), nominated=each.held(request.key))
            for each in (history.model, anew)
        )
        assert first == again
