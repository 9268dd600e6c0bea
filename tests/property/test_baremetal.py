"""The profile `baremetal` is the best-fit of its document: in any order of requests the same machines come out."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.vm_request import VmRequest
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import read_config
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.profile import Profile
from mandor.placement.plugin_source import find_plugins
from mandor.placement.profile_factory import ProfileFactory
from tests.property.plain_best_fit import Fleet, Machine, Size, Weights
from tests.unit.placement.test_claims import PROFILE, machine, place, task

POOLS = ("default", "ai")
sizes = st.builds(Size, st.integers(1, 16), st.integers(1, 64))
weights = st.builds(Weights, st.integers(1, 9), st.integers(0, 9), st.integers(0, 9))


@st.composite
def inventories(draw: st.DrawFn) -> list[Machine]:
    """Machines in any order, some of them in use already."""
    names = draw(st.lists(st.from_regex(r"[a-z][a-z0-9]{0,3}", fullmatch=True), min_size=1, max_size=8, unique=True))
    return [draw(machines(name)) for name in names]


@st.composite
def machines(draw: st.DrawFn, name: str) -> Machine:
    cpu, memory = draw(sizes)
    percent, quota = draw(st.integers(0, 100)), draw(st.none() | st.integers(1, 6))
    used_cpu, used_memory = cpu * percent // 100, memory * percent // 100
    # Where room is used, somebody is there, even if the inventory does not count him.
    vms = min(quota or 3, percent // 30)
    return Machine(name, cpu, memory, draw(st.sampled_from(POOLS)), quota, used_cpu, used_memory, vms)


steps = st.lists(st.tuples(sizes, st.sampled_from(POOLS)) | st.integers(0, 50), min_size=1, max_size=40)
"""A request for resources, or their return: cancelled, timed out or released."""


@lru_cache(maxsize=64)
def profile_with(weighed: Weights) -> Profile:
    text = f"""
    profiles:
    - schedulerName: baremetal
      ties: first
      plugins:
        multiPoint:
          disabled: [{{name: "*"}}]
          enabled: [{{name: PrioritySort}}, {{name: PoolFit}}, {{name: TaintToleration}}, {{name: NodeResourcesFit}},
            {{name: VMQuota}}, {{name: BestFit}}, {{name: DefaultBinder}}]
        score: {{disabled: [{{name: "*"}}], enabled: [{{name: BestFit}}]}}
      pluginConfig:
      - name: BestFit
        args: {{cpu: {weighed.cpu}, memory: {weighed.memory}, machines: {weighed.machines}}}
    """
    known = find_plugins(points=())
    return ProfileFactory(DETACHED).profiles(read_config(text, known), known)["baremetal"]


@pytest.mark.req("S4-11", "S4-12", "S4-47")
@settings(deadline=None)
@given(inventories(), steps, st.none() | weights)
def test_in_any_order_the_same_machines_come_out_as_of_the_plain_best_fit(
    inventory: list[Machine], wanted: list[tuple[Size, str] | int], weighed: Weights | None
) -> None:
    profile = PROFILE if weighed is None else profile_with(weighed)
    board = ClusterModel(
        machine(
            each.name,
            cpu=each.cpu,
            memory=each.memory,
            pool=each.pool,
            used=(each.used_cpu, each.used_memory, each.vms),
            quota=each.quota,
        )
        for each in inventory
    )
    fleet = Fleet(inventory, weighed or Weights())
    placed: list[tuple[VmRequest, str, Size]] = []
    for index, step in enumerate(wanted):
        if isinstance(step, int):
            if placed:
                given_back, where, size = placed.pop(step % len(placed))
                board.remove(given_back.claim_key)
                fleet.give_back(where, size)
            continue
        size, pool = step
        asked = task(f"t{index}", cpu=size.cpu, memory_mib=size.memory * 1024, pool=pool)
        where = place(board, asked, profile)
        assert where == fleet.place(size, pool)
        if where:
            placed.append((asked, where, size))
