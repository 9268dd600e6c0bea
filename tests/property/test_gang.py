"""Gangs on random clusters: whole or nothing once things settle, never over capacity, whatever the order of arrival."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.gang import GangDecision, GangTrial
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import GI, make_node, make_template, make_workload
from tests.scenarios.world import World

PLACEMENTS: list[dict[str, Any]] = [
    {},
    {"spread": [{"over": "zone"}]},
    {"spread": [{"over": "zone", "strength": "should"}], "where": [{"rule": "disk == ssd", "strength": "should"}]},
    {"apart": [{"workload": "self", "over": "node"}]},
    {"apart": [{"workload": "self", "over": "node", "strength": "should"}]},
    {"near": [{"workload": "self", "over": "zone"}]},
]
nodes = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from("ab"), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6
)


def _table(cluster: list[tuple[int, str, bool, int]]) -> Table:
    table = Table("gangs")
    other = Shape.of(make_template(cpu=1))
    for index, (cpu, zone, ssd, taken) in enumerate(cluster):
        labels = {"zone": zone, "disk": "ssd" if ssd else "hdd"}
        table.set_node(make_node(f"n{index}", cpu=cpu, memory=8 * GI, labels=labels))
        for each in range(min(taken, cpu)):
            table.set_allocation(Key(Instance.kind, "default", f"x{index}-{each}"), f"n{index}", other)
    return table


def _decide(trial: GangTrial, most: int) -> GangDecision:
    while True:
        found = trial.step(most)
        if found is not None:
            return found


@settings(max_examples=120, deadline=None)
@given(
    cluster=nodes,
    count=st.integers(1, 8),
    least=st.integers(1, 8),
    placement=st.sampled_from(PLACEMENTS),
    most=st.integers(1, 9),
    shuffle=st.randoms(use_true_random=False),
)
def test_a_gang_is_placed_whole_within_capacity_and_by_no_order_of_arrival(
    cluster: list[tuple[int, str, bool, int]],
    count: int,
    least: int,
    placement: dict[str, Any],
    most: int,
    shuffle: random.Random,
) -> None:
    least = min(least, count)
    shape = Shape.of(make_template(cpu=1, memory=GI, placement=placement))
    identity = Identity("default", "mpi", "main")
    requests = [
        PlacementRequest(Key(Instance.kind, "default", f"mpi-{index}"), shape, identity=identity)
        for index in range(count)
    ]
    profile = default_profile()
    table = _table(cluster)
    before = {name: table.free(name) for name in table.snapshot().slots}
    found = _decide(GangTrial(profile, requests, table, least=least), count)

    assert not found.placed or len(found.placed) >= least
    assert bool(found.placed) == (found.fitted >= least)
    assert {name: table.free(name) for name in table.snapshot().slots} == before
    shuffle.shuffle(requests)
    assert _decide(GangTrial(profile, requests, table, least=least), most) == found
    assert len({each.relaxed for each in found.placed}) <= 1
    for each in found.placed:
        table.set_allocation(each.key, each.node, shape, identity)
    assert all(amount >= 0 for name in table.snapshot().slots for amount in table.free(name).values())


racked = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from(["r1", "r2", "r3", ""]), st.sampled_from("ab"), st.integers(0, 3)),
    min_size=1,
    max_size=6,
)
Racked = list[tuple[int, str, str, int]]


def _racked_table(cluster: Racked) -> Table:
    table, other = Table("racks"), Shape.of(make_template(cpu=1))
    for index, (cpu, rack, zone, taken) in enumerate(cluster):
        labels = {"zone": zone} | ({"rack": rack} if rack else {})
        table.set_node(make_node(f"n{index}", cpu=cpu, memory=64 * GI, labels=labels))
        for each in range(min(taken, cpu)):
            table.set_allocation(Key(Instance.kind, "default", f"x{index}-{each}"), f"n{index}", other)
    return table


def _holds(cluster: Racked, among: list[int], count: int, cpu: int, *, alone: bool) -> bool:
    """Try every way to distribute the members over these nodes."""
    for chosen in product(among, repeat=count):
        members = Counter(chosen)
        if alone and max(members.values()) > 1:
            continue
        if all(cluster[at][0] - min(cluster[at][3], cluster[at][0]) >= cpu * many for at, many in members.items()):
            return True
    return False


@settings(max_examples=250, deadline=None)
@given(
    cluster=racked,
    count=st.integers(1, 4),
    cpu=st.integers(1, 2),
    facts=st.sampled_from([("rack",), ("zone",), ("rack", "zone")]),
    alone=st.sampled_from(["", "apart", "port"]),
    most=st.integers(1, 5),
)
def test_a_gang_is_placed_exactly_if_one_domain_can_hold_it(
    cluster: Racked, count: int, cpu: int, facts: tuple[str, ...], alone: str, most: int
) -> None:
    near = {"near": [{"workload": "self", "over": fact} for fact in facts]}
    apart = {"apart": [{"workload": "self", "over": "node"}]} if alone == "apart" else {}
    ports = {"ports": {"main": {"port": 80, "host": 8080}}} if alone == "port" else {}
    shape = Shape.of(make_template(cpu=cpu, memory=GI, placement=near | apart, **ports))
    identity = Identity("default", "mpi", "main")
    requests = [
        PlacementRequest(Key(Instance.kind, "default", f"mpi-{index}"), shape, identity=identity)
        for index in range(count)
    ]
    values = [{"rack": rack, "zone": zone} for _, rack, zone, _ in cluster]
    by_domain: dict[tuple[str, ...], list[int]] = {}
    for at, node in enumerate(values):
        domain = tuple(node[fact] for fact in facts)
        if all(domain):
            by_domain.setdefault(domain, []).append(at)
    holding = {domain for domain, among in by_domain.items() if _holds(cluster, among, count, cpu, alone=bool(alone))}
    table = _racked_table(cluster)
    found = _decide(GangTrial(default_profile(), requests, table, least=count), most)
    assert bool(found.placed) == bool(holding)
    if found.placed:
        assert len(found.placed) == count
        used = {tuple(values[int(each.node[1:])][fact] for fact in facts) for each in found.placed}
        assert len(used) == 1
        assert used <= holding


def _in_pieces(world: World, name: str, least: int) -> bool:
    held = [each for each in world.instances(name) if each.node and not each.phase.over and each.spec.stop is None]
    return 0 < len(held) < least


async def play(seed: int) -> None:
    """Gangs come, grow, shrink and go; nodes are cordoned, silent and lost; schedulers die."""
    dice = random.Random(seed)
    world = World(seed=str(seed))
    world.checks = [world.check_capacity, world.check_count]
    wanted: dict[str, int] = {}
    async with world:
        await world.add_nodes("n1", "n2", "n3", cpu=3)
        for _ in range(12):
            deed, name = dice.randrange(7), dice.choice(["a", "b", "c"])
            if deed <= 2:
                replicas = dice.randrange(1, 7)
                wanted[name] = dice.randrange(1, replicas + 1)
                facts = {"min": wanted[name], "timeout": "15s"}
                await world.apply(make_workload(name, replicas=replicas, gang=facts, cpu="1"))
            elif deed == 3:
                await world.change_node(dice.choice(["n1", "n2", "n3"]), cordoned=dice.random() < 0.5)
            elif deed == 4:
                await world.kill("scheduler")
                await world.kill("its recorder")
                world.start_scheduler()
            elif deed == 5 and world.instances(name):
                await world.delete(dice.choice(world.instances(name)))
            elif deed == 6:
                node = world.nodes[dice.choice(["n1", "n2", "n3"])]
                node.alive = not node.alive
            await world.run(dice.randrange(1, 9))
        for each in world.nodes.values():
            each.alive = True
        await world.until(lambda: not any(_in_pieces(world, *each) for each in wanted.items()), seconds=200)
        # And so it stays.
        await world.run(60)
        assert not [name for name, least in wanted.items() if _in_pieces(world, name, least)], world.phases()


@pytest.mark.req("S0-20", "S0-25")
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 100_000))
def test_no_gang_stays_in_pieces_whatever_happens(seed: int) -> None:
    asyncio.run(play(seed))
