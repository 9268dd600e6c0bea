"""Reservations on random clusters: places fit, do not move, and are not given to other instances."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.controllers.reservation_plan import plan_reservation
from mandor.lib.quantity import Cpu
from mandor.lib.steps import at_once
from mandor.model.meta import InvalidField, Meta
from mandor.model.phase import Phase
from mandor.model.reservation import Reservation, ReservationSpec, ReservationStatus
from mandor.model.resources import Resources, TaskResources
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.cycle import decide
from mandor.placement.profiles import default_profile
from mandor.placement.reserved_room import ReservableNode
from mandor.store.base import Put
from tests.scenarios.make import make_instance, make_node, make_stored_release, make_workload

START, END = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
DURING = 1_767_225_600.0 + 3600
NODES = ["n0", "n1", "n2"]


def reservation(count: int, cpu: int, held: dict[str, int] | None = None) -> Reservation:
    spec = ReservationSpec(count=count, resources=TaskResources(cpu=Cpu(cpu)), workload="owner", start=START, end=END)
    status = ReservationStatus(phase="Active", held=held) if held else ReservationStatus()
    return Reservation(meta=Meta(name="kept", namespace="default", uid="u", version=1), spec=spec, status=status)


def planned(value: Reservation, rooms: list[ReservableNode], now: float = DURING) -> Reservation:
    for write in at_once(plan_reservation(value, rooms, now)).writes:
        assert isinstance(write, Put)
        assert isinstance(write.value, Reservation)
        value = write.value
    return value


ROOMS = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 4000)), min_size=0, max_size=4).map(
    lambda found: [
        ReservableNode(f"n{index}", Resources(min(free, most)), Resources(most))
        for index, (free, most) in enumerate(found)
    ]
)


@given(st.integers(1, 8), st.integers(100, 2000), ROOMS)
def test_places_fit_into_their_nodes_and_are_never_more_than_wanted(
    count: int, cpu: int, rooms: list[ReservableNode]
) -> None:
    made = planned(reservation(count, cpu), rooms)
    held = made.status.held
    assert sum(held.values()) == min(count, sum(room.most.cpu_milli // cpu for room in rooms))
    for room in rooms:
        assert held.get(room.name, 0) * cpu <= room.most.cpu_milli
    if sum(held.values()) < count:
        assert "more do not fit" in made.status.message
    again = planned(made, rooms)
    assert again.status.held == held, "what is held stays where it is"


@given(st.integers(1, 8), ROOMS)
def test_room_that_is_free_is_held_before_room_that_others_have(count: int, rooms: list[ReservableNode]) -> None:
    held = planned(reservation(count, 500), rooms).status.held
    if count <= sum(room.free.cpu_milli // 500 for room in rooms):
        assert all(held.get(room.name, 0) * 500 <= room.free.cpu_milli for room in rooms)


def test_it_holds_from_its_start_to_its_end_and_no_longer() -> None:
    rooms = [ReservableNode("n0", Resources(4000), Resources(4000))]
    before = planned(reservation(2, 500), rooms, DURING - 7200)
    assert (before.status.phase, before.status.held) == ("Waiting", {})
    during = planned(before, rooms)
    assert (during.status.phase, during.status.held) == ("Active", {"n0": 2})
    after = planned(during, rooms, DURING + 86_400)
    assert (after.status.phase, after.status.held) == ("Over", {})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"end": START, "start": END}, "not after `start`"),
        ({"end": "tomorrow"}, "is not a time"),
        ({"end": "2026-01-02T00:00:00"}, "has no time zone"),
        ({"end": END, "resources": TaskResources()}, "resources of a slot are empty"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, object], said: str) -> None:
    given_fields = {"resources": TaskResources(cpu=Cpu(100)), **fields}
    with pytest.raises(InvalidField, match=said):
        ReservationSpec(**given_fields)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(NODES), st.integers(1, 4), min_size=1),
    st.lists(st.sampled_from(["owner", "other"]), min_size=1, max_size=20),
)
def test_held_room_goes_to_its_workload_only(held: dict[str, int], asking: list[str]) -> None:
    board = ClusterModel([*(make_node(name, cpu=2) for name in NODES), reservation(sum(held.values()), 500, held)])
    profile = default_profile()
    workloads = {name: make_workload(name, replicas=20, cpu="500m", memory="1Mi") for name in ("owner", "other")}
    for each in workloads.values():
        board.put(each)
        board.put(make_stored_release(each))
    placed = {name: dict.fromkeys(NODES, 0) for name in workloads}
    for index, name in enumerate(asking):
        instance = make_instance(index, workload=name, release=f"{name}.1", node="")
        request = board.request(instance)
        assert request is not None
        decision = decide(profile, request, board.table.snapshot())
        # By hand: of four halves of a node, those that are held and not used by whom they are for are not for others.
        room = {
            node: 4
            - placed["owner"][node]
            - placed["other"][node]
            - (max(0, held.get(node, 0) - placed["owner"][node]) if name == "other" else 0)
            for node in NODES
        }
        assert bool(decision.node) == (max(room.values()) > 0), decision.message
        if not decision.node:
            if name == "other" and sum(placed["owner"].values()) + sum(placed["other"].values()) < 12:
                assert "reserved for default/owner (kept) until" in decision.message
            continue
        assert room[decision.node] > 0
        kept = {node for node in NODES if held.get(node, 0) > placed["owner"][node] and room[node] > 0}
        if name == "owner" and kept:
            assert decision.node in kept, "its own first"
        placed[name][decision.node] += 1
        board.put(make_instance(index, workload=name, release=f"{name}.1", node=decision.node))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4), st.integers(0, 4), st.integers(1, 5))
def test_no_instance_is_preempted_for_reserved_room(held: int, lowly: int, halves: int) -> None:
    """One node of four halves, some reserved, some used at low priority, and a request of high priority."""
    lowly = min(lowly, 4 - held)
    board = ClusterModel([make_node("n0", cpu=2)])
    if held:
        board.put(reservation(held, 500, {"n0": held}))
    owners = (
        make_workload("low", replicas=4, cpu="500m", memory="1Mi"),
        make_workload("vip", replicas=1, priority=100, cpu=f"{500 * halves}m", memory="1Mi"),
    )
    for each in owners:
        board.put(each)
        board.put(make_stored_release(each))
    for index in range(lowly):
        board.put(make_instance(index, workload="low", release="low.1", node="n0"))
    request = board.request(make_instance(0, Phase.PENDING, workload="vip", release="vip.1"))
    assert request is not None
    decision = decide(default_profile(), request, board.table.snapshot())
    free = 4 - held - lowly
    assert bool(decision.node) == (halves <= free)
    if not decision.node:
        assert bool(decision.nominated) == (halves <= 4 - held), decision.message
        assert bool(decision.victims) == bool(decision.nominated)
