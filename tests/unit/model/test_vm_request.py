"""A task for a virtual machine: what it may ask for, and the steps it takes."""

from __future__ import annotations

import msgspec
import pytest

from mandor.errors import Invalid
from mandor.model.codec import decode, decode_as, encode
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.vm_request import HISTORY_MOST, VmRequest, VmRequestSpec


def task(**more: object) -> VmRequest:
    spec = VmRequestSpec(cpu=4, memory_mib=8192, **more)  # type: ignore[arg-type]
    return VmRequest(meta=Meta(name="t1", namespace="default"), spec=spec)


@pytest.mark.parametrize(
    "body",
    [
        b'{"cpu":0,"memory_mib":1}',
        b'{"cpu":-4,"memory_mib":1}',
        b'{"cpu":4,"memory_mib":0}',
        b'{"cpu":"four","memory_mib":1}',
        b'{"cpu":4,"memory_mib":1e40}',
        b'{"cpu":100000,"memory_mib":1}',
        b'{"cpu":4,"memory_mib":1,"pool":"No Such!"}',
        b'{"cpu":4,"memory_mib":1,"where":["zone ~~ a"]}',
        b'{"cpu":4,"memory_mib":1,"colour":"red"}',
    ],
)
def test_a_size_that_cannot_be_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        decode_as(body, VmRequestSpec)


@pytest.mark.req("S4-33")
def test_every_step_is_remembered_and_the_history_is_bounded() -> None:
    each = task()
    for number in range(HISTORY_MOST):
        each = each.moved("Processing", float(number)).moved("Queued", number + 0.5, "no room")
    assert len(each.status.history) == HISTORY_MOST
    assert each.status.history[0].at == 0.0
    assert each.status.history[-1].why == "no room"


def test_a_task_that_ended_takes_no_step() -> None:
    ended = task().moved("Cancelled", 1.0)
    assert ended.ended
    with pytest.raises(ValueError, match="cannot change its state from Cancelled to Placed"):
        ended.moved("Placed", 2.0)


def test_a_task_and_its_claim_are_the_same_after_a_trip_through_json() -> None:
    each = task(dedicated=True, where=("zone == a",)).moved("Processing", 1.0)
    assert decode(encode(each)) == each
    claim = decode(encode(each.claim))
    assert claim == each.claim
    assert isinstance(claim, Instance)
    assert claim.spec.claim == each.claim.spec.claim


def test_claims_that_ask_for_the_same_report_it_and_dedicated_ones_stand_alone() -> None:
    one, other = task().claim, task().changed(meta=Meta(name="t2", namespace="default")).claim
    assert (one.spec.workload, one.spec.release) == (other.spec.workload, other.spec.release)
    alone = task(dedicated=True).claim
    assert alone.spec.workload != one.spec.workload
    assert msgspec.json.encode(alone.meta.name) == b'"vm-t1"'
