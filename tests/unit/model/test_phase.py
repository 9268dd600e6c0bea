"""The phases of an instance: one table of moves, and nothing beside it."""

import pytest

from mandor.model.codec import decode, encode
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, instance_name
from mandor.model.meta import Meta
from mandor.model.phase import MOVES, OVER, Phase, may_move


def make_instance(phase: Phase = Phase.PENDING) -> Instance:
    return Instance(
        meta=Meta(name="web-0", namespace="default"),
        spec=InstanceSpec(workload="web", release="web.1", index=0),
        status=InstanceStatus(phase=phase),
    )


def test_every_phase_has_its_row() -> None:
    assert set(MOVES) == set(Phase)


def test_what_is_over_never_moves_again() -> None:
    assert {phase for phase, moves in MOVES.items() if not moves} == OVER
    assert all(phase.over == (phase in OVER) for phase in Phase)


def test_every_phase_but_lost_can_be_reached_from_pending_without_losing_a_node() -> None:
    seen, waiting = {Phase.PENDING}, [Phase.PENDING]
    while waiting:
        for after in MOVES[waiting.pop()] - seen - {Phase.LOST}:
            seen.add(after)
            waiting.append(after)
    assert seen == set(Phase) - {Phase.LOST}


def test_an_instance_runs_only_after_it_was_reserved() -> None:
    assert MOVES[Phase.PENDING] == {Phase.RESERVED, Phase.STOPPED}


def test_a_lost_instance_may_come_back() -> None:
    assert may_move(Phase.LOST, Phase.RUNNING)


@pytest.mark.parametrize("phase", list(Phase))
def test_staying_is_always_allowed(phase: Phase) -> None:
    assert may_move(phase, phase)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (Phase.PENDING, Phase.RUNNING),
        (Phase.STOPPED, Phase.RUNNING),
        (Phase.FAILED, Phase.STARTING),
        (Phase.RUNNING, Phase.PENDING),
        (Phase.RUNNING, Phase.RESERVED),
        (Phase.PENDING, Phase.LOST),
    ],
)
def test_a_move_that_is_not_in_the_table_is_refused(before: Phase, after: Phase) -> None:
    with pytest.raises(ValueError, match=f"cannot change its phase from {before} to {after}"):
        make_instance(before).reported(InstanceStatus(phase=after))


@pytest.mark.req("S0-26")
def test_binding_reserves_the_node() -> None:
    bound = make_instance().bound("n1", at=5.0)
    assert (bound.node, bound.phase, bound.status.since) == ("n1", Phase.RESERVED, 5.0)


def test_what_was_given_up_for_a_place_stays_with_it() -> None:
    bound = make_instance().bound("n1", at=5.0, relaxed=("zone == a",))
    again = decode(encode(bound))
    assert isinstance(again, Instance)
    assert again.spec.relaxed == ("zone == a",)


def test_a_second_order_to_stop_changes_nothing() -> None:
    once = make_instance().stopping("scaled down", at=1.0)
    assert once.stopping("deleted by user", at=2.0) is once
    assert once.spec.stop is not None
    assert once.spec.stop.reason == "scaled down"


def test_an_instance_is_named_after_workload_group_and_index() -> None:
    assert instance_name("web", "main", 0) == "web-0"
    assert instance_name("shop", "web", 3) == "shop-web-3"


def test_an_instance_is_small_in_the_store() -> None:
    bound = make_instance().bound("node-0001", at=1_700_000_000.0)
    assert len(encode(bound.stamped(version=123456, uid="a" * 20, created_at=1.7e9))) < 350
