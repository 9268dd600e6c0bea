"""Claims hold room that no agent fills, and the profile `baremetal` says on which machine."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.model.claim import DEDICATED
from mandor.model.meta import Meta
from mandor.model.node import Node, Occupied, Taint
from mandor.model.vm_request import MIB, VmRequest, VmRequestSpec
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import read_config
from mandor.placement.cycle import decide
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.profile import Profile
from mandor.placement.plugin_source import find_plugins
from mandor.placement.profile_factory import ProfileFactory
from mandor.placement.profiles import made_with
from tests.scenarios.make import make_node

GIB = 1024**3
PROFILE = made_with(None, DETACHED)["baremetal"]


def machine(
    name: str,
    *,
    cpu: int = 16,
    memory: int = 64,
    pool: str = "default",
    used: tuple[int, int, int] = (0, 0, 0),
    quota: int | None = None,
    taints: tuple[Taint, ...] = (),
    facts: dict[str, str] | None = None,
) -> Node:
    """`memory` in GiB; `used`: cores, GiB and virtual machines."""
    node = make_node(name, cpu=cpu, memory=memory * GIB)
    occupied = Occupied(cpu_milli=used[0] * 1000, memory_bytes=used[1] * GIB, machines=used[2])
    facts = {**(facts or {}), **({} if quota is None else {"vm.quota": str(quota)})}
    return node.changed(
        spec=replace(node.spec, pool=pool, taints=taints),
        status=replace(node.status, inventory="file", occupied=occupied, facts=facts, engines={}),
    )


def task(name: str, cpu: int = 4, memory_mib: int = 8192, **more: Any) -> VmRequest:
    spec = VmRequestSpec(cpu=cpu, memory_mib=memory_mib, **more)
    return VmRequest(meta=Meta(name=name, namespace="default"), spec=spec)


def place(board: ClusterModel, wanted: VmRequest, profile: Profile = PROFILE) -> str:
    """Place a claim and count it; return the node, or an empty string."""
    claim = wanted.claim
    request = board.request(claim)
    assert request is not None
    node = decide(profile, request, board.table.snapshot()).node
    if node:
        board.put(claim.bound(node, at=1.0))
    return node or ""


@pytest.mark.req("S4-1")
@pytest.mark.req("S4-9")
def test_a_claim_stays_in_its_pool() -> None:
    board = ClusterModel([machine("a"), machine("b", pool="ai")])
    assert place(board, task("t1", pool="ai")) == "b"
    assert place(board, task("t2", pool="gpu")) == ""


@pytest.mark.req("S4-13")
def test_a_machine_with_memory_in_use_and_no_virtual_machine_counts_none() -> None:
    board = ClusterModel([machine("a", used=(1, 2, 0), quota=1)])
    assert place(board, task("t1", dedicated=True)) == "a"
    assert place(board, task("t2")) == ""


@pytest.mark.req("S4-1")
@pytest.mark.req("S4-9")
def test_dedicated_is_a_machine_of_its_own_or_one_of_the_class_of_dedicated_machines() -> None:
    dedicated = machine("d", taints=(Taint(DEDICATED),), facts={DEDICATED: "true"})
    nodes = [machine("a"), dedicated]
    alone = ClusterModel(nodes)
    assert place(alone, task("t1")) == "a", "a dedicated machine takes only requests with `dedicated`"
    assert place(alone, task("t2", dedicated=True)) == "d"
    assert place(alone, task("t3", dedicated=True)) == "", "another one is on it"
    shared = ClusterModel(nodes)
    asked = [task(f"t{index}", dedicated=True, dedication="class") for index in range(3)]
    assert [place(shared, each) for each in asked] == ["d", "d", "d"]
    assert place(shared, task("t4", cpu=8, dedicated=True, dedication="class")) == "", "the others take no overflow"
    assert place(shared, task("t5")) == "a"


@pytest.mark.req("S4-1")
@pytest.mark.parametrize(
    ("wanted", "best"),
    [
        ({"cpu": 40}, "many-cores"),
        ({"memory_mib": 300 * 1024}, "much-memory"),
        ({"pool": "ai"}, "other-pool"),
        ({"dedicated": True, "dedication": "class"}, "dedicated"),
        ({}, "small"),
        ({"cpu": 40, "memory_mib": 300 * 1024}, ""),
        ({"cpu": 40, "pool": "ai"}, ""),
    ],
)
def test_cpu_memory_pool_and_dedicated_each_decide_on_the_machine(wanted: dict[str, Any], best: str) -> None:
    nodes = [
        machine("small", used=(8, 8, 1)),
        machine("many-cores", cpu=64),
        machine("much-memory", memory=512),
        machine("other-pool", pool="ai"),
        machine("dedicated", taints=(Taint(DEDICATED),), facts={DEDICATED: "true"}),
    ]
    for order in (nodes, nodes[::-1]):
        assert place(ClusterModel(order), task("t1", **wanted)) == best


@pytest.mark.req("S4-10")
def test_reported_usage_and_claims_reduce_free_resources() -> None:
    board = ClusterModel([machine("a", cpu=16, memory=64, used=(8, 8, 2))])
    assert [place(board, task(f"t{index}")) for index in range(3)] == ["a", "a", ""]
    board.put(machine("a", cpu=16, memory=64, used=(4, 8, 1)))
    assert place(board, task("t9")) == "a"


@pytest.mark.req("S4-13")
def test_the_quota_counts_the_machines_of_others_and_the_claims() -> None:
    board = ClusterModel([machine("a", used=(1, 1, 2), quota=4)])
    assert [place(board, task(f"t{index}", cpu=1, memory_mib=16)) for index in range(3)] == ["a", "a", ""]


@pytest.mark.req("S4-11")
@pytest.mark.req("S4-12")
def test_the_fullest_machine_that_has_room_is_best() -> None:
    nodes = [machine("empty"), machine("half", used=(8, 32, 1)), machine("full", used=(14, 60, 1))]
    assert place(ClusterModel(nodes), task("t1")) == "half"


WEIGHED = """
profiles:
- schedulerName: baremetal
  plugins:
    multiPoint:
      disabled: [{{name: "*"}}]
      enabled:
      - name: PrioritySort
      - {{name: NodeResourcesFit, weight: 1}}
      - {{name: VMQuota, weight: {quota}}}
      - name: DefaultBinder
  pluginConfig:
  - name: NodeResourcesFit
    args:
      scoringStrategy:
        type: MostAllocated
        resources: [{{name: cpu, weight: {cpu}}}, {{name: memory, weight: {memory}}}]
"""


@pytest.mark.req("S4-11", "S4-12", "S4-47")
@pytest.mark.parametrize(
    ("weights", "best"),
    [
        ({"quota": 1, "cpu": 99, "memory": 1}, "much-cpu"),
        ({"quota": 1, "cpu": 1, "memory": 99}, "much-memory"),
        ({"quota": 50, "cpu": 1, "memory": 1}, "much-quota"),
    ],
)
def test_the_weights_of_a_configuration_decide_which_machine_is_best(weights: dict[str, int], best: str) -> None:
    nodes = [
        machine("much-cpu", used=(15, 0, 3), quota=4),
        machine("much-memory", used=(0, 60, 3), quota=4),
        machine("much-quota", used=(1, 1, 3), quota=6),
    ]
    known = find_plugins(points=[])
    profile = ProfileFactory(DETACHED).profiles(read_config(WEIGHED.format(**weights), known), known)["baremetal"]
    for order in (nodes, nodes[::-1]):
        assert place(ClusterModel(order), task("t1", cpu=1, memory_mib=1024), profile) == best


def test_small_ones_fill_a_machine_before_they_begin_another() -> None:
    board = ClusterModel([machine(name, cpu=64, memory=256, quota=32) for name in ("a", "b", "c")])
    placed = [place(board, task(f"t{index}", cpu=1, memory_mib=4096)) for index in range(40)]
    assert sorted(map(placed.count, ("a", "b", "c"))) == [0, 8, 32]


def test_a_dedicated_one_gets_a_machine_for_itself_and_keeps_it() -> None:
    board = ClusterModel([machine("used", used=(1, 1, 1)), machine("a")])
    assert place(board, task("alone", dedicated=True)) == "a"
    assert place(board, task("t1")) == "used"
    assert place(board, task("second", dedicated=True)) == ""


def test_a_machine_for_dedicated_ones_takes_no_others() -> None:
    board = ClusterModel([machine("a", taints=(Taint(DEDICATED),))])
    assert place(board, task("t1")) == ""
    assert place(board, task("t2", dedicated=True)) == "a"


def test_rules_of_a_task_apply() -> None:
    board = ClusterModel([machine("a"), machine("b").changed(meta=Meta(name="b", labels={"zone": "b"}))])
    assert place(board, task("t1", where=("zone == b",))) == "b"


def test_a_machine_that_leaves_the_inventory_leaves_nothing_behind() -> None:
    board = ClusterModel([machine("a", used=(16, 64, 9))])
    board.remove(machine("a").key)
    board.put(machine("a"))
    assert place(board, task("t1")) == "a"


sizes = st.tuples(st.integers(1, 16), st.integers(1, 64))
machines = st.lists(st.tuples(sizes, st.integers(0, 100), st.integers(1, 6)), min_size=1, max_size=8)


@given(machines, st.lists(sizes, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_nothing_is_ever_sold_twice(
    wanted: list[tuple[tuple[int, int], int, int]], requests: list[tuple[int, int]], chance: random.Random
) -> None:
    nodes = {}
    for index, ((cpu, memory), percent, quota) in enumerate(wanted):
        used = (cpu * percent // 100, memory * percent // 100, min(quota, percent // 30))
        nodes[f"m{index}"] = machine(f"m{index}", cpu=cpu, memory=memory, used=used, quota=quota)
    board = ClusterModel(nodes.values())
    chance.shuffle(requests)
    placed: dict[str, list[VmRequest]] = {name: [] for name in nodes}
    for index, (cpu, memory) in enumerate(requests):
        each = task(f"t{index}", cpu=cpu, memory_mib=memory * 1024)
        where = place(board, each)
        if where:
            placed[where].append(each)
    for name, there in placed.items():
        node, occupied = nodes[name], nodes[name].status.occupied
        assert occupied is not None
        cpu_milli = occupied.cpu_milli + sum(each.spec.cpu * 1000 for each in there)
        memory_bytes = occupied.memory_bytes + sum(each.spec.memory_mib * MIB for each in there)
        assert cpu_milli <= node.status.capacity.cpu_milli
        assert memory_bytes <= node.status.capacity.memory_bytes
        assert not there or occupied.machines + len(there) <= int(node.status.facts["vm.quota"])
