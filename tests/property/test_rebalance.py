"""Rebalancing over random clusters: what it finds is worth its while, stays within its bounds, and comes to an end."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.rebalance import PlannedMove, RebalanceSpec
from mandor.model.rollout import Rollout
from mandor.model.workload import Release, Workload, WorkloadStatus
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import read_config
from mandor.placement.framework.handle import Detached
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.watch import Unwatched
from mandor.placement.plugin_source import find_plugins
from mandor.placement.profile_factory import ProfileFactory
from mandor.placement.rebalance import MoveSearch
from tests.scenarios.make import NOW, make_instance, make_node, make_stored_release, make_workload

NODES = ["n0", "n1", "n2", "n3"]
LEAST = b"{profiles: [{schedulerName: default}]}"
PACKED = (
    b"{profiles: [{schedulerName: default, plugins: {score: {disabled: [{name: '*'}],"
    b" enabled: [{name: BinPack, weight: 1}]}}}]}"
)
SPREAD = (
    b"{profiles: [{schedulerName: default, plugins: {score: {disabled: [{name: '*'}],"
    b" enabled: [{name: NodeResourcesFit, weight: 1}]}}}]}"
)
CONFIGS = {"default": LEAST, "packed": PACKED, "least": SPREAD}


def profiles_of(board: ClusterModel, config: str) -> dict[str, Profile]:
    registry = find_plugins()
    return ProfileFactory(Detached(board.table.snapshot)).profiles(read_config(CONFIGS[config], registry), registry)


RULES = st.sampled_from(
    [
        {},
        {"spread": [{"over": "zone", "strength": "should"}]},
        {"spread": [{"over": "zone", "strength": "must"}]},
        {"apart": [{"workload": "self", "strength": "should"}]},
        {"apart": [{"workload": "self", "strength": "prefer"}]},
        {"near": [{"workload": "w0", "strength": "prefer"}]},
        {"where": [{"rule": "zone == z0", "strength": "prefer"}]},
    ]
)
GROUPS = st.lists(
    st.tuples(st.sampled_from([0.25, 0.5, 1.0]), RULES, st.lists(st.integers(0, 3), min_size=1, max_size=6)),
    min_size=1,
    max_size=4,
)


def settled(workload: Workload, release: Release) -> Workload:
    rollout = Rollout(release=release.meta.name, target=release.meta.name, phase="Done")
    return workload.changed(status=WorkloadStatus(phase="Running", rollout=rollout))


def cluster(groups: list[tuple[float, dict[str, object], list[int]]]) -> list[Object]:
    """Instances on given nodes, as long as resources last."""
    found: list[Object] = [
        make_node(name, cpu=4, labels={"zone": f"z{index // 2}"}) for index, name in enumerate(NODES)
    ]
    left = dict.fromkeys(NODES, 4.0)
    for number, (cpu, rules, places) in enumerate(groups):
        room = [NODES[place] for place in places]
        chosen = []
        for node in room:
            if left[node] >= cpu:
                left[node] -= cpu
                chosen.append(node)
        if not chosen:
            continue
        name = f"w{number}"
        workload = make_workload(name, replicas=len(chosen), cpu=str(cpu), memory="64Mi", placement=rules)
        release = make_stored_release(workload)
        found += [settled(workload, release), release]
        found += [
            make_instance(index, workload=name, release=release.meta.name, node=node)
            for index, node in enumerate(chosen)
        ]
    return found


def plan(objects: list[Object], config: str = "default", **fields: object) -> list[PlannedMove]:
    board = ClusterModel(objects)
    spec = RebalanceSpec(**fields)  # type: ignore[arg-type]
    search = MoveSearch(board, profiles_of(board, config), spec, now=NOW, watch=Unwatched())
    for _ in search.steps():
        pass
    return search.found


def carried_out(objects: list[Object], moves: list[PlannedMove]) -> list[Object]:
    to = {each.uid: each.to for each in moves}
    return [
        each.changed(spec=replace(each.spec, node=to[each.meta.uid]))
        if isinstance(each, Instance) and each.meta.uid in to
        else each
        for each in objects
    ]


def free(objects: list[Object]) -> dict[str, int]:
    table = ClusterModel(objects).table
    return {node: table.free(node)["cpu"] for node in NODES}


SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@SETTINGS
@given(GROUPS, st.sampled_from(sorted(CONFIGS)), st.integers(1, 4), st.integers(1, 60))
def test_a_plan_stays_within_its_limits_and_moves_no_instance_twice(
    groups: list[tuple[float, dict[str, object], list[int]]], config: str, moves: int, min_gain: int
) -> None:
    objects = cluster(groups)
    found = plan(objects, config, moves=moves, min_gain=min_gain)
    assert len(found) <= moves
    assert all(count == 1 for count in Counter(each.uid for each in found).values())
    assert all(each.gain >= min_gain and each.own >= min_gain for each in found)
    assert all(each.source != each.to for each in found)
    room = free(objects)
    sizes = {name: groups[int(name[1:])][0] for name in {each.workload for each in found}}
    for each in found:
        assert room[each.to] >= sizes[each.workload] * 1000, "the other one starts while this one is still there"
        room[each.to] -= round(sizes[each.workload] * 1000)
        room[each.source] += round(sizes[each.workload] * 1000)


@SETTINGS
@given(GROUPS, st.sampled_from(sorted(CONFIGS)))
def test_carried_out_again_and_again_it_comes_to_rest(
    groups: list[tuple[float, dict[str, object], list[int]]], config: str
) -> None:
    objects = cluster(groups)
    for _ in range(12):
        moves = plan(objects, config)
        if not moves:
            return
        objects = carried_out(objects, moves)
    pytest.fail(f"somebody always moves: {moves}")


@SETTINGS
@given(GROUPS)
def test_by_least_allocated_the_use_of_nodes_grows_more_alike_with_every_move(
    groups: list[tuple[float, dict[str, object], list[int]]],
) -> None:
    objects = cluster([(cpu, {}, places) for cpu, _, places in groups])
    before = statistics.pvariance(free(objects).values())
    for each in plan(objects, "least", min_gain=5):
        objects = carried_out(objects, [each])
        after = statistics.pvariance(free(objects).values())
        assert after < before
        before = after


@SETTINGS
@given(GROUPS)
def test_by_bin_packing_the_use_of_nodes_grows_more_different_with_every_move(
    groups: list[tuple[float, dict[str, object], list[int]]],
) -> None:
    objects = cluster([(cpu, {}, places) for cpu, _, places in groups])
    before = statistics.pvariance(free(objects).values())
    for each in plan(objects, "packed", min_gain=5):
        objects = carried_out(objects, [each])
        after = statistics.pvariance(free(objects).values())
        assert after > before
        before = after
