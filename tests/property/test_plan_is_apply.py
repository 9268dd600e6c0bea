"""A plan tells what an apply then really does, node by node; and it writes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import read_config
from mandor.placement.forecast import Forecast, Outcome
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.profile import Profile
from mandor.placement.plugin_source import find_plugins
from mandor.placement.profile_factory import ProfileFactory
from mandor.placement.table import Table
from mandor.roots.forecast import controls
from mandor.sim.scripted import ScriptedNode
from tests.scenarios.make import GI, make_node, make_workload
from tests.scenarios.world import World

DEFAULT = "profiles: [{}]"
PACKED = """
profiles:
- pluginConfig:
  - name: NodeResourcesFit
    args: {scoringStrategy: {type: MostAllocated}}
"""
BIN_PACK = """
profiles:
- plugins: {multiPoint: {enabled: [{name: BinPack, weight: 20}]}}
"""
FEWER = """
profiles:
- plugins: {score: {disabled: [{name: '*'}], enabled: [{name: TaintToleration}]}}
"""

zones = st.sampled_from(["a", "b", "c"])
node = st.fixed_dictionaries({"cpu": st.integers(1, 6), "memory": st.integers(1, 8), "zone": zones})
rules: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"placement": {"where": [{"rule": "zone == a", "strength": "should"}]}},
        {"placement": {"where": [{"rule": "zone == b", "strength": "must"}]}},
        {"placement": {"spread": [{"over": "zone", "strength": "should"}]}},
        {"placement": {"apart": [{"workload": "self", "strength": "should"}]}},
        {"placement": {"apart": [{"workload": "self", "over": "zone"}]}},
        {"image": "web:1", "alternatives": [{"engine": ["process"], "command": ["run"], "resources": {"cpu": "500m"}}]},
        {
            "alternatives": [{"resources": {"cpu": "100m"}}],
            "placement": {"spread": [{"over": "zone", "strength": "should"}]},
        },
        {"placement": {"near": [{"match": {"app": "first"}, "over": "zone", "strength": "prefer", "weight": 50}]}},
    ]
)
wanted = st.fixed_dictionaries(
    {"replicas": st.integers(0, 6), "cpu": st.sampled_from(["250m", "1", "2"]), "rule": rules}
)


def profiles_of(text: str) -> dict[str, Profile]:
    registry = find_plugins(points=())
    return ProfileFactory(DETACHED).profiles(read_config(text.encode(), registry), registry)


def board_of(world: World) -> ClusterModel:
    kinds = (Node, Workload, Release, Instance)
    return ClusterModel(each for kind in kinds for each in world.all(kind))


def forecast_of(world: World, text: str) -> Forecast:
    return Forecast(board_of(world), profiles_of(text), controls, now=world.clock.now())


def workload_of(name: str, fields: dict[str, Any]) -> Workload:
    made = make_workload(name, replicas=fields["replicas"], cpu=fields["cpu"], **fields["rule"])
    return made.changed(meta=made.meta.__class__(name=name, namespace="default", labels={"app": name}))


def counted(table: Table) -> dict[str, Any]:
    """Return the state that decisions depend on."""
    rooms: dict[str, Any] = {node.meta.name: table.free(node.meta.name) for node in table.snapshot().nodes}
    return rooms | {str(key): (allocation.node, allocation.identity) for key, allocation in table.allocations.items()}


def told(outcome: Outcome) -> dict[str, str]:
    return {key.name: placed.node for key, placed in outcome.placed.items()} | dict.fromkeys(
        (key.name for key in outcome.left), ""
    )


async def start(world: World, nodes: list[dict[str, Any]]) -> None:
    for index, each in enumerate(nodes):
        name = f"n{index}"
        world.nodes[name] = ScriptedNode(name)
        labels = {"zone": each["zone"]}
        made = make_node(name, cpu=each["cpu"], memory=each["memory"] * GI, labels=labels)
        await world.add(made)
    await world.run(2)


def really(world: World, names: set[str]) -> dict[str, str]:
    return {each.meta.name: each.node for each in world.instances() if each.meta.name in names}


@pytest.mark.req("S0-25", "S3-20")
@pytest.mark.parametrize("text", [DEFAULT, PACKED, BIN_PACK, FEWER], ids=["default", "packed", "bin-pack", "fewer"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(nodes=st.lists(node, min_size=1, max_size=5), first=wanted, second=wanted)
async def test_what_is_planned_is_what_an_apply_does(
    text: str, nodes: list[dict[str, Any]], first: dict[str, Any], second: dict[str, Any]
) -> None:
    world = World()
    world.scheduler_options = {"profiles": profiles_of(text)}
    async with world:
        await start(world, nodes)
        await world.apply(workload_of("first", first))
        await world.run(8)

        assert world.scheduler is not None
        forecast = forecast_of(world, text)
        assert counted(forecast.model.table) == counted(world.scheduler.view.table)
        revision = world.store.index.revision
        forecast.put(workload_of("second", second))
        planned = told(forecast.run())
        assert world.store.index.revision == revision

        await world.apply(workload_of("second", second))
        await world.run(8)
        assert planned == really(world, {each.meta.name for each in world.instances("second")})


@pytest.mark.req("S3-20", "S3-38")
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(nodes=st.lists(node, min_size=2, max_size=5), first=wanted)
async def test_the_planned_loss_of_a_node_is_what_its_loss_does(
    nodes: list[dict[str, Any]], first: dict[str, Any]
) -> None:
    async with World() as world:
        await start(world, nodes)
        await world.apply(workload_of("first", first))
        await world.run(8)
        # Who waits already and who comes new would race for the same place.
        assume(all(each.node for each in world.instances()))

        forecast = forecast_of(world, DEFAULT)
        forecast.lose("n0")
        planned = told(forecast.run())

        there = {each.meta.uid for each in world.instances() if each.node == "n0"}
        world.nodes["n0"].alive = False
        await world.run(100, step=1.0)
        moved = {each.meta.name for each in world.instances() if each.meta.uid not in there}
        assert planned == really(world, set(planned) & moved)
        assert not any(each.node == "n0" and each.phase is Phase.RUNNING for each in world.instances())


async def test_a_roll_out_is_planned_to_its_end() -> None:
    async with World() as world:
        await start(world, [{"cpu": 2, "memory": 4, "zone": "a"}, {"cpu": 2, "memory": 4, "zone": "b"}])
        await world.apply(make_workload("web", replicas=3, cpu="1"))
        await world.run(8)
        changed = make_workload("web", replicas=3, cpu="1", env={"A": "1"})

        forecast = forecast_of(world, DEFAULT)
        before = world.workload("web")
        forecast.put(before.changed(spec=changed.spec))
        outcome = forecast.run()
        assert outcome.complete

        await world.apply(changed)
        await world.run(60)
        assert {each.spec.release for each in world.instances()} == {"web.2"}
        assert told(outcome) == really(world, {each.meta.name for each in world.instances()})


async def test_fewer_replicas_end_those_that_really_end() -> None:
    async with World() as world:
        await start(world, [{"cpu": 4, "memory": 4, "zone": "a"}])
        await world.apply(make_workload("web", replicas=4, cpu="1"))
        await world.run(8)
        fewer = make_workload("web", replicas=1, cpu="1")
        forecast = forecast_of(world, DEFAULT)
        forecast.put(world.workload("web").changed(spec=fewer.spec))
        outcome = forecast.run()
        assert not outcome.placed
        assert not outcome.left
        assert {ended.reason for ended in outcome.ended.values()} == {"scaled down"}

        await world.apply(fewer)
        await world.run(10)
        gone = {Key(Instance.kind, "default", f"web-{index}") for index in range(4)}
        assert set(outcome.ended) == gone - {each.key for each in world.instances()}


@pytest.mark.parametrize("replicas", [3, 5])
async def test_a_gang_is_planned_whole_or_not_at_all(replicas: int) -> None:
    async with World() as world:
        await start(world, [{"cpu": 2, "memory": 4, "zone": "a"}, {"cpu": 2, "memory": 4, "zone": "b"}])
        gang = make_workload("crew", replicas=replicas, cpu="1", gang={})
        forecast = forecast_of(world, DEFAULT)
        forecast.put(gang)
        planned = told(forecast.run())
        assert len(planned) == replicas
        assert all(planned.values()) is (replicas == 3)

        await world.apply(gang)
        await world.run(8)
        assert planned == really(world, set(planned))
        if replicas == 5:
            message = world.instance("crew-0").status.message
            assert message.startswith("the gang needs 5: 4 would fit;")


@pytest.mark.req("S1-35", "S3-27")
async def test_planned_victims_are_the_evicted_ones() -> None:
    async with World() as world:
        await start(world, [{"cpu": 2, "memory": 4, "zone": "a"}, {"cpu": 2, "memory": 4, "zone": "b"}])
        await world.apply(make_workload("low", replicas=4, cpu="1", priority=1))
        await world.run(8)
        high = make_workload("high", replicas=1, cpu="2", priority=100)

        forecast = forecast_of(world, DEFAULT)
        forecast.put(high)
        outcome = forecast.run()
        assert len(outcome.victims) == 2
        assert {key.name for key in outcome.victims.values()} == {"high-0"}
        planned = told(outcome)

        await world.apply(high)
        await world.run(60)
        assert really(world, {"high-0"}) == {"high-0": planned["high-0"]}
        waiting = {each.meta.name for each in world.instances("low") if not each.node}
        assert waiting == {key.name for key in outcome.left} == {key.name for key in outcome.victims}


@pytest.mark.req("S1-35", "S3-27")
async def test_a_gang_that_takes_the_place_of_others_is_planned_as_it_then_happens() -> None:
    async with World() as world:
        await start(world, [{"cpu": 2, "memory": 4, "zone": "a"}] * 3)
        await world.apply(make_workload("low", replicas=6, cpu="1", priority=1))
        await world.run(8)
        crew = make_workload("crew", replicas=2, cpu="2", priority=100, gang={})

        forecast = forecast_of(world, DEFAULT)
        forecast.put(crew)
        outcome = forecast.run()
        planned = told(outcome)
        assert len(outcome.victims) == 4
        assert len({planned["crew-0"], planned["crew-1"]}) == 2

        await world.apply(crew)
        await world.run(60)
        assert really(world, {"crew-0", "crew-1"}) == {name: planned[name] for name in ("crew-0", "crew-1")}
        waiting = {each.meta.name for each in world.instances("low") if not each.node}
        assert waiting == {key.name for key in outcome.left} == {key.name for key in outcome.victims}
