"""Phases of nodes and losses of instances by the time without heartbeats."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from mandor.controllers import node_plan
from mandor.controllers.heartbeats import HeartbeatReceiver
from mandor.controllers.node_plan import LossPermits, NodeState, NodeTimes, lost, lost_after, next_state
from mandor.model.node import NodePhase
from mandor.model.phase import Phase
from tests.scenarios.make import NOW, make_group, make_instance, make_node

TIMES = NodeTimes(suspect_seconds=20, lost_seconds=60, trickle_seconds=30)


# Listening.


def make_ears(*nodes: str, now: float = 0.0) -> HeartbeatReceiver:
    ears = HeartbeatReceiver(gap_seconds=15)
    ears.renewed("s1", 10, now)
    ears.receive("s1", nodes)
    ears.evaluate(nodes, now)
    return ears


def tick(
    ears: HeartbeatReceiver, nodes: tuple[str, ...], since: float, until: float, *, renew: tuple[str, ...] = ("s1",)
) -> None:
    at = since
    while at < until:
        at = min(at + 1, until)
        for server in renew:
            ears.renewed(server, 10, at)
        ears.evaluate(nodes, at)


def test_silence_counts_from_the_last_heartbeat() -> None:
    ears = make_ears("n1", "n2")
    tick(ears, ("n1", "n2"), 0, 5)
    assert (ears.silence("n1"), ears.heard) == (0, {"n1", "n2"})
    ears.receive("s1", ["n2"])
    tick(ears, ("n1", "n2"), 5, 30)
    assert (ears.silence("n1"), ears.silence("n2")) == (25, 0)
    ears.receive("s1", ["n1"])
    tick(ears, ("n1", "n2"), 30, 31)
    assert (ears.silence("n1"), ears.silence("n2")) == (0, 1)


def test_a_new_node_gets_the_whole_time() -> None:
    ears = make_ears()
    tick(ears, (), 0, 100)
    tick(ears, ("new",), 100, 101)
    assert ears.silence("new") == 0
    tick(ears, ("new",), 101, 111)
    assert ears.silence("new") == 10


def test_heartbeats_received_by_a_dead_server_do_not_count() -> None:
    ears = make_ears("n1")
    ears.renewed("s2", 10, 0)
    tick(ears, ("n1",), 0, 30, renew=("s2",))
    assert "n1" not in ears.heard
    assert ears.silence("n1") == 30 - 9, "from when the lease of the server ran out"


def test_heartbeats_at_one_live_server_are_enough() -> None:
    ears = make_ears("n1")
    ears.receive("s1", [])
    ears.renewed("s2", 10, 0)
    ears.receive("s2", ["n1"])
    tick(ears, ("n1",), 0, 30, renew=("s1", "s2"))
    assert ears.silence("n1") == 0
    ears.forget("s2")
    tick(ears, ("n1",), 30, 40, renew=("s1", "s2"))
    assert ears.silence("n1") == 10


@pytest.mark.req("S0-24")
def test_without_a_live_server_no_silence_counts() -> None:
    ears = make_ears("n1")
    tick(ears, ("n1",), 0, 5)
    tick(ears, ("n1",), 5, 3600, renew=())
    assert ears.silence("n1") == 0
    ears.receive("s1", [])
    tick(ears, ("n1",), 3600, 3610)
    assert ears.silence("n1") == 10, "afterwards everyone has the whole grace"


def test_a_paused_observer_starts_counting_again() -> None:
    ears = make_ears("n1")
    ears.receive("s1", [])
    tick(ears, ("n1",), 0, 10)
    assert ears.silence("n1") == 10
    ears.renewed("s1", 10, 500)
    ears.evaluate(("n1",), 500)
    assert ears.silence("n1") == 0


# Judging.


def seen(
    name: str = "n1", *, phase: NodePhase = NodePhase.READY, heard: bool = False, silence: float = 0.0, **fields: Any
) -> NodeState:
    return NodeState(make_node(name, phase=phase, **fields), heard, silence, wants=silence >= 60)


@pytest.mark.req("S2-19")
@pytest.mark.parametrize(
    ("before", "heard", "silence", "permitted", "after"),
    [
        (NodePhase.UNKNOWN, True, 0, False, NodePhase.READY),
        (NodePhase.UNKNOWN, False, 5, False, NodePhase.UNKNOWN),
        (NodePhase.UNKNOWN, False, 20, False, NodePhase.SUSPECT),
        (NodePhase.READY, False, 19.9, False, NodePhase.READY),
        (NodePhase.READY, False, 20, False, NodePhase.SUSPECT),
        (NodePhase.SUSPECT, False, 60, True, NodePhase.DOWN),
        (NodePhase.SUSPECT, False, 600, False, NodePhase.SUSPECT),
        (NodePhase.SUSPECT, True, 0, False, NodePhase.READY),
        (NodePhase.DOWN, True, 0, True, NodePhase.READY),
        (NodePhase.DOWN, False, 0, False, NodePhase.DOWN),
        (NodePhase.DOWN, False, 30, False, NodePhase.DOWN),
    ],
)
def test_a_node_is_judged_by_its_silence(
    before: NodePhase, heard: bool, silence: float, permitted: bool, after: NodePhase
) -> None:
    found = next_state(seen(phase=before, heard=heard, silence=silence), TIMES, permitted=permitted, now=NOW)
    assert (found.status.phase if found else before) is after
    assert (found is None) == (before is after), "nothing is written twice"


def test_only_phase_reason_and_since_are_the_controllers() -> None:
    before = seen(silence=61, facts={"arch": "arm64"})
    after = next_state(before, TIMES, permitted=True, now=NOW)
    assert after is not None
    assert (after.status.phase, after.status.reason, after.status.since) == (
        NodePhase.DOWN,
        "no heartbeat for 1m1s",
        NOW,
    )
    assert (after.spec, after.status.facts) == (before.node.spec, {"arch": "arm64"})


@pytest.mark.parametrize(
    ("disconnect", "seconds"),
    [
        ({}, 60),
        ({"lost_after": "5m"}, 300),
        ({"lost_after": "30s"}, 30),
        ({"lost_after": "1s"}, 20),
        ({"stop_after": "2m"}, 120 + 10 + 10),
        ({"stop_after": "2m", "lost_after": "10m"}, 600),
    ],
)
def test_a_group_decides_when_its_instances_are_lost(disconnect: dict[str, str], seconds: float) -> None:
    assert lost_after(make_group(disconnect=disconnect), TIMES) == seconds


def test_an_instance_of_a_workload_that_is_gone_is_lost_as_the_cluster_shows() -> None:
    assert lost_after(None, TIMES) == 60


def test_a_lost_instance_is_not_ready_and_shows_why() -> None:
    after = lost(make_instance(0, Phase.RUNNING), "no heartbeat from node n1 for 1m", NOW)
    assert (after.phase, after.status.reason, after.status.ready) == (Phase.LOST, "NodeLost", False)


# Many at once.


def permit(nodes: list[NodeState], before: LossPermits, times: NodeTimes, now: float) -> LossPermits:
    """LossPermits for silent nodes; the others are only counted."""
    counts = Counter(each.node.spec.pool for each in nodes if each.heard)
    return node_plan.permit([each for each in nodes if not each.heard], counts, before, times, now)


def silent(*names: str, silence: float = 60.0, pool: str = "default") -> list[NodeState]:
    return [seen(name, silence=silence, pool=pool) for name in names]


def heard(*names: str, pool: str = "default") -> list[NodeState]:
    return [seen(name, heard=True, pool=pool) for name in names]


def test_a_few_silent_nodes_are_given_up_together() -> None:
    after = permit([*silent("n1", "n2"), *heard("n3", "n4")], LossPermits(), TIMES, now=0)
    assert set(after.given) == {"n1", "n2"}
    assert after.mass == set()


def test_when_most_of_a_pool_falls_silent_one_is_given_up_at_a_time() -> None:
    nodes = [*silent("n1", "n2", "n3"), *heard("n4", "n5")]
    permits = permit(nodes, LossPermits(), TIMES, now=0)
    assert (set(permits.given), set(permits.mass)) == ({"n1"}, {"default"})
    permits = permit(nodes, permits, TIMES, now=29)
    assert set(permits.given) == {"n1"}
    permits = permit(nodes, permits, TIMES, now=30)
    assert set(permits.given) == {"n1", "n2"}


def test_the_longest_silent_goes_first() -> None:
    nodes = [*silent("n1", "n2"), *silent("n3", silence=70), *heard("n4")]
    assert set(permit(nodes, LossPermits(), TIMES, now=0).given) == {"n3"}


def test_nodes_that_fall_silent_one_after_the_other_are_still_many() -> None:
    nodes = [*silent("n1", silence=60), *silent("n2", "n3", silence=25), *heard("n4", "n5")]
    permits = permit(nodes, LossPermits(), TIMES, now=0)
    assert set(permits.given) == {"n1"}
    permits = permit([*silent("n1", "n2", "n3", silence=61), *heard("n4", "n5")], permits, TIMES, now=5)
    assert set(permits.given) == {"n1"}


def test_two_silent_nodes_are_no_mass_silence() -> None:
    assert set(permit(silent("n1", "n2"), LossPermits(), TIMES, now=0).given) == {"n1", "n2"}


def test_pools_are_evaluated_separately() -> None:
    nodes = [*silent("n1", "n2", "n3", pool="edge"), *silent("m1"), *heard("m2", "m3")]
    permits = permit(nodes, LossPermits(), TIMES, now=0)
    assert (set(permits.given), set(permits.mass)) == ({"n1", "m1"}, {"edge"})


def test_nodes_that_were_down_long_ago_do_not_count() -> None:
    down = [seen(f"d{index}", phase=NodePhase.DOWN, silence=60) for index in range(5)]
    permits = permit([*down, *silent("n1"), *heard("n2", "n3")], LossPermits(), TIMES, now=1000)
    assert "n1" in permits.given
    assert permits.mass == set()


def test_a_node_with_heartbeats_again_needs_a_new_permit() -> None:
    permits = permit([*silent("n1"), *heard("n2")], LossPermits(), TIMES, now=0)
    permits = permit(heard("n1", "n2"), permits, TIMES, now=5)
    assert set(permits.given) == set()
