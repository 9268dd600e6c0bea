"""A gang on the scratch table: who is placed, what is given up, what is left behind, and that steps change nothing."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.points import FilterPlugin
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.snapshot import NodeView
from mandor.placement.gang import GangDecision, GangTrial, membership, refusal
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import make_instance, make_node, make_template, make_workload

WHO = Identity("default", "mpi", "main")


def table(*nodes: Any) -> Table:
    made = Table("gang")
    for node in nodes:
        made.set_node(node)
    return made


def requests(count: int, **fields: Any) -> list[PlacementRequest]:
    shape = Shape.of(make_template(**{"cpu": 1, **fields}))
    return [
        PlacementRequest(Key(Instance.kind, "default", f"mpi-{index}"), shape, identity=WHO) for index in range(count)
    ]


def decide(trial: GangTrial, most: int = 1000) -> GangDecision:
    for _ in range(10_000):
        found = trial.step(most)
        if found is not None:
            return found
    raise AssertionError("no end")


def nodes_of(decision: GangDecision) -> dict[str, str]:
    return {each.key.name: each.node for each in decision.placed}


def test_all_fit_and_the_table_is_untouched() -> None:
    room = table(make_node("a", cpu=2), make_node("b", cpu=2))
    version = room.version
    found = decide(GangTrial(default_profile(), requests(4), room, least=4))
    assert sorted(nodes_of(found).values()) == ["a", "a", "b", "b"]
    assert not room.allocations
    assert room.version == version


def test_a_gang_with_too_few_fitting_members_reports_the_first_refusal() -> None:
    room = table(make_node("a", cpu=2), make_node("b", cpu=1))
    found = decide(GangTrial(default_profile(), requests(5), room, least=4))
    assert found.placed == ()
    assert found.fitted == 3
    assert found.refused is not None
    assert found.refused.key.name == "mpi-3"
    assert found.refused.message == "0/2 nodes fit: 2 NodeResourcesFit (short of 1 cpu)"


def test_more_than_the_least_are_placed_as_far_as_they_fit() -> None:
    found = decide(GangTrial(default_profile(), requests(5), table(make_node("a", cpu=3)), least=2))
    assert sorted(nodes_of(found)) == ["mpi-0", "mpi-1", "mpi-2"]


@pytest.mark.parametrize("most", [1, 2, 3, 7])
@pytest.mark.parametrize("least", [3, 9])
def test_steps_lead_to_the_same_end_as_one_go(most: int, least: int) -> None:
    rules = {
        "spread": [{"over": "node", "strength": "should"}],
        "where": [{"rule": "disk == ssd", "strength": "should"}],
    }
    room = table(*(make_node(f"n{index}", cpu=2, labels={"disk": "ssd"} if index < 2 else {}) for index in range(5)))
    members = requests(9, placement=rules)
    profile = default_profile()
    at_once = decide(GangTrial(profile, members, room, least=least))
    in_steps = decide(GangTrial(profile, members, room, least=least), most)
    assert in_steps == at_once
    assert [each.relaxed for each in in_steps.placed] == [each.relaxed for each in at_once.placed]


def test_rules_are_given_up_for_all_or_for_none() -> None:
    room = table(make_node("fast", cpu=2, labels={"disk": "ssd"}), make_node("slow", cpu=4))
    wish = {"where": [{"rule": "disk == ssd", "strength": "should"}]}
    kept = decide(GangTrial(default_profile(), requests(2, placement=wish), room, least=2))
    assert {each.relaxed for each in kept.placed} == {()}
    assert set(nodes_of(kept).values()) == {"fast"}
    dropped = decide(GangTrial(default_profile(), requests(4, placement=wish), room, least=4))
    assert {each.relaxed for each in dropped.placed} == {("disk == ssd",)}


def test_members_that_would_rather_be_apart_share_a_node_when_they_must() -> None:
    apart = {"apart": [{"workload": "self", "over": "node", "strength": "should"}]}
    room = table(make_node("a", cpu=4), make_node("b", cpu=4))
    kept = decide(GangTrial(default_profile(), requests(2, placement=apart), room, least=2))
    assert sorted(nodes_of(kept).values()) == ["a", "b"]
    shared = decide(GangTrial(default_profile(), requests(3, placement=apart), room, least=3))
    assert len(shared.placed) == 3
    assert all("apart" in " ".join(each.relaxed) for each in shared.placed)
    hard = {"apart": [{"workload": "self", "over": "node"}]}
    assert not decide(GangTrial(default_profile(), requests(3, placement=hard), room, least=3)).placed


def test_changes_between_two_steps_are_taken_into_account() -> None:
    room = table(make_node("a", cpu=2), make_node("b", cpu=2))
    trial = GangTrial(default_profile(), requests(4), room, least=4)
    assert trial.step(2) is None
    room.set_node(make_node("b", cpu=2, cordoned=True))
    assert not decide(trial, 2).placed
    again = GangTrial(default_profile(), requests(4), room, least=4)
    assert again.step(2) is None
    room.set_node(make_node("b", cpu=2))
    assert len(decide(again, 2).placed) == 4


def test_a_table_that_never_rests_does_not_hold_a_gang_up_for_ever() -> None:
    room = table(make_node("a", cpu=8))
    trial = GangTrial(default_profile(), requests(8), room, least=8)
    found, steps = None, 0
    while found is None:
        found = trial.step(1)
        room.set_node(make_node("a", cpu=8))
        steps += 1
    assert steps < 10
    assert len(found.placed) == 8


@pytest.mark.req("S1-35", "S3-27")
def test_a_gang_evicts_a_thousand_instances_in_steps_as_in_one_go() -> None:
    room = table(*(make_node(f"n{index}", cpu=10) for index in range(20)))
    low = Shape.of(make_template(cpu="200m"))
    for index in range(1000):
        room.set_allocation(Key(Instance.kind, "default", f"low-{index}"), f"n{index % 20}", low)
    members = [structs.replace(each, priority=10) for each in requests(20, cpu=10)]
    profile = default_profile()
    at_once = decide(GangTrial(profile, members, room, least=20))
    assert len(at_once.nominated) == 20
    assert len({key for each in at_once.nominated for key in each.victims}) == 1000
    assert decide(GangTrial(profile, members, room, least=20), 100) == at_once


def racks(**sizes: int) -> Table:
    """One core on each of so many nodes in each rack; the names of the racks begin with their zone."""
    return table(
        *(
            make_node(f"{rack}-{index}", cpu=1, labels={"rack": rack, "zone": rack[0]})
            for rack, size in sizes.items()
            for index in range(size)
        )
    )


ONE_RACK = {"near": [{"workload": "self", "over": "rack"}]}


def racks_of(decision: GangDecision) -> set[str]:
    return {each.node.partition("-")[0] for each in decision.placed}


@pytest.mark.parametrize("most", [1, 3, 1000])
def test_a_gang_near_itself_gets_the_tightest_rack_that_has_room(most: int) -> None:
    room, profile = racks(a1=2, a2=6, b1=4, b2=3), default_profile()
    for count, rack in ((2, "a1"), (3, "b2"), (4, "b1"), (5, "a2")):
        found = decide(GangTrial(profile, requests(count, placement=ONE_RACK), room, least=count), most)
        assert racks_of(found) == {rack}
        assert len(found.placed) == count
    assert not room.allocations


def test_a_rack_with_room_for_all_members_is_preferred_to_one_with_room_for_the_least() -> None:
    found = decide(GangTrial(default_profile(), requests(4, placement=ONE_RACK), racks(a1=2, b1=5), least=2))
    assert racks_of(found) == {"b1"}
    assert len(found.placed) == 4
    fewer = decide(GangTrial(default_profile(), requests(6, placement=ONE_RACK), racks(a1=2, b1=5), least=2))
    assert racks_of(fewer) == {"b1"}
    assert len(fewer.placed) == 5


def test_a_gang_that_no_rack_holds_is_placed_in_one_zone_if_its_rack_rule_can_be_given_up() -> None:
    rules = {"near": [{"workload": "self", "over": "zone"}, {"workload": "self", "over": "rack", "strength": "should"}]}
    found = decide(GangTrial(default_profile(), requests(6, placement=rules), racks(a1=4, a2=1, b1=3, b2=4), least=6))
    assert racks_of(found) == {"b1", "b2"}
    assert {each.relaxed for each in found.placed} == {("near self over rack",)}


@pytest.mark.req("S0-35")
def test_the_reason_names_the_largest_rack_and_its_room() -> None:
    found = decide(GangTrial(default_profile(), requests(4, placement=ONE_RACK), racks(a1=2, b1=3), least=4))
    assert not found.placed
    assert refusal(found, 4, 0) == (
        "the gang needs 4 in one rack: the largest rack, b1, has room for 3 of 4; mpi-3 does not fit: 0/5 nodes fit: "
        "3 NodeResourcesFit (short of 1 cpu), 2 InterPodAffinity (not near mpi/main)"
    )


def test_members_join_those_that_are_bound_and_search_no_other_rack() -> None:
    room, members = racks(a1=2, b1=4), requests(3, placement=ONE_RACK)
    first = members.pop(0)
    room.set_allocation(first.key, "a1-0", first.shape, first.identity)
    assert not decide(GangTrial(default_profile(), members, room, least=2)).placed
    room.drop_allocation(first.key)
    room.set_allocation(first.key, "b1-0", first.shape, first.identity)
    assert racks_of(decide(GangTrial(default_profile(), members, room, least=2))) == {"b1"}


def of_group(group: str, count: int) -> list[PlacementRequest]:
    """Members that have to be in the rack of the whole workload."""
    shape = Shape.of(make_template(cpu=1, placement={"near": [{"workload": "mpi", "over": "rack"}]}))
    keys = [Key(Instance.kind, "default", f"mpi-{group}-{index}") for index in range(count)]
    return [PlacementRequest(key, shape, identity=Identity("default", "mpi", group)) for key in keys]


@pytest.mark.parametrize("most", [1, 1000])
def test_a_gang_chooses_a_rack_that_has_room_for_the_other_gangs_of_its_workload(most: int) -> None:
    room, profile = racks(a1=2, b1=4, c1=6, d1=5), default_profile()
    launcher, workers = of_group("launcher", 1), of_group("worker", 4)
    assert racks_of(decide(GangTrial(profile, launcher, room, least=1), most)) == {"a1"}
    first = decide(GangTrial(profile, launcher, room, least=1, beside=workers), most)
    assert racks_of(first) == {"d1"}
    assert [each.key for each in first.placed] == [launcher[0].key]
    assert not room.allocations
    room.set_allocation(launcher[0].key, first.placed[0].node, launcher[0].shape, launcher[0].identity)
    assert racks_of(decide(GangTrial(profile, workers, room, least=4), most)) == {"d1"}


def test_a_gang_that_no_rack_holds_together_with_the_others_is_placed_alone() -> None:
    found = decide(
        GangTrial(default_profile(), of_group("launcher", 1), racks(a1=2, b1=4), least=1, beside=of_group("worker", 9))
    )
    assert len(found.placed) == 1


@pytest.mark.req("S1-35", "S3-27")
def test_a_gang_near_itself_evicts_in_the_rack_where_fewest_have_to_go() -> None:
    room, low = racks(a1=3, b1=3, c1=2), Shape.of(make_template(cpu=1))
    for node in ("a1-0", "a1-1", "b1-2", "c1-0", "c1-1"):
        room.set_allocation(Key(Instance.kind, "default", f"low-{node}"), node, low)
    members = [structs.replace(each, priority=10) for each in requests(3, placement=ONE_RACK)]
    found = decide(GangTrial(default_profile(), members, room, least=3))
    assert {each.nominated for each in found.nominated} == {"b1-0", "b1-1", "b1-2"}
    assert [key.name for each in found.nominated for key in each.victims] == ["low-b1-2"]


class Broken(FilterPlugin):
    name = "Broken"

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        if request.key.name == "mpi-1":
            raise RuntimeError("no idea")
        return True


def test_a_plugin_that_fails_for_one_member_fails_the_gang_and_leaves_no_trace() -> None:
    profile = Profile("default", [*default_profile().enabled, Enabled(Broken())])
    room = table(make_node("a", cpu=8))
    found = decide(GangTrial(profile, requests(3), room, least=3))
    assert found.fault == "Broken"
    assert "no idea" in found.message
    assert not room.allocations


def test_a_gang_needs_all_members_unless_it_specifies_fewer() -> None:
    def least(**fields: Any) -> int:
        made = membership(make_instance(workload="web"), make_workload("web", **fields))
        return made.least if made is not None else 0

    assert least(replicas=4) == 0
    assert least(replicas=4, gang={}) == 4
    assert least(replicas=4, gang={"min": 2}) == 2
    assert least(gang={"min": 3}) == 1, "as many as there are"
    batch = {"completions": 9, "parallelism": 3}
    assert least(type="batch", batch=batch, gang={}) == 3
    assert least(type="batch", batch={**batch, "completions": 2}, gang={}) == 2
