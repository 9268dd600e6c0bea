"""The waiting room: several who say wait, the first timeout, the last approval."""

from __future__ import annotations

import asyncio

import pytest

from mandor.lib.clock import ManualClock, settle
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.scheduler.permits import Denied, PermitWaits
from tests.scenarios.make import make_template

SHAPE = Shape.of(make_template())
ASK = PlacementRequest(Key(Instance.kind, "default", "web-0"), SHAPE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.req("S1-18", "S1-22")
async def test_the_wait_ends_with_the_last_approval(clock: ManualClock) -> None:
    room = PermitWaits(clock)
    leaving = asyncio.ensure_future(room.leave(room.enter(ASK, "n1", [("A", 10), ("B", 20)])))
    await settle()
    assert room.approve(ASK.key, "B")
    assert not room.approve(ASK.key, "B"), "twice is once"
    assert [each.plugins for each in room.waiting()] == [("A",)]
    await clock.advance(9)
    assert not leaving.done()
    assert room.approve(ASK.key, "A")
    assert await leaving is None
    assert len(room) == 0


@pytest.mark.req("S1-21")
async def test_the_first_to_run_out_denies(clock: ManualClock) -> None:
    room = PermitWaits(clock)
    leaving = asyncio.ensure_future(room.leave(room.enter(ASK, "n1", [("A", 10), ("B", 5)])))
    await clock.advance(4.9)
    assert not leaving.done()
    await clock.advance(0.2)
    assert await leaving == Denied("B", "not approved in time")
    assert not room.approve(ASK.key, "A")


@pytest.mark.req("S1-22")
async def test_anybody_may_reject(clock: ManualClock) -> None:
    room = PermitWaits(clock)
    seat = room.enter(ASK, "n1", [("A", 10)])
    assert room.reject(ASK.key, "Somebody else", "no more")
    assert list(room.waiting()) == []
    assert await room.leave(seat) == Denied("Somebody else", "no more")


async def test_an_instance_with_the_name_of_another_keeps_its_own_slot(clock: ManualClock) -> None:
    room = PermitWaits(clock)
    old = room.enter(ASK, "n1", [("A", 10)])
    room.reject(ASK.key, "A", "gone")
    leaving = asyncio.ensure_future(room.leave(old))
    new = room.enter(ASK, "n2", [("A", 10)])
    assert await leaving == Denied("A", "gone")
    assert [each.node for each in room.waiting()] == ["n2"]
    room.approve(ASK.key, "A")
    assert await room.leave(new) is None
