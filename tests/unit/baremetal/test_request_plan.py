"""The plan of VM requests: attempts, time limits, requests without a worker, and old records."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mandor.baremetal.request_plan import (
    NO_NODES,
    ClaimResult,
    address_of,
    begun,
    claim_result,
    outdated,
    placed,
    plan_sweep,
    refused,
)
from mandor.baremetal.settings import VmRequestSettings
from mandor.lib.delay import Delay
from mandor.lib.steps import at_once
from mandor.model.instance import UNSCHEDULABLE, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.vm_request import VmRequest, VmRequestSpec, VmRequestState, VmRequestStatus
from tests.scenarios.make import make_node

NOW = 10_000.0
SETTINGS = VmRequestSettings(
    attempts=3, stuck_seconds=60, pause=Delay(first_seconds=10, most_seconds=40), jitter=0.5, kept_seconds=1000
)


def request(
    name: str = "r1", state: VmRequestState = "Queued", *, age: float = 0, since: float = 0, **status: Any
) -> VmRequest:
    """A request that was created `age` seconds ago, and is in its state since `since` seconds."""
    spec = VmRequestSpec(cpu=2, memory_mib=1024, place_seconds=300, hold_seconds=600)
    meta = Meta(name=name, namespace="default", created_at=NOW - age)
    return VmRequest(meta=meta, spec=spec, status=VmRequestStatus(state=state, since=NOW - since, **status))


def sweep(*requests: VmRequest, claims: tuple[VmRequest, ...] = (), nodes: tuple[str, ...] = ("n1",)) -> dict[str, Any]:
    found = at_once(plan_sweep(requests, [each.claim for each in claims], set(nodes), SETTINGS, NOW))
    return {
        "failed": [(each.meta.name, reason, error) for each, reason, error in found.failed],
        "published": [each.meta.name for each in found.published],
        "forgotten": [each.meta.name for each in found.forgotten],
        "orphans": [each.meta.name for each in found.orphans],
    }


NOTHING: dict[str, Any] = {"failed": [], "published": [], "forgotten": [], "orphans": []}


# Attempts.


def test_a_decision_is_a_node_or_a_reason_and_nothing_while_room_is_being_made() -> None:
    claim = request().claim
    assert claim_result(claim) is None
    assert claim_result(replace(claim, spec=replace(claim.spec, node="n1"))) == ClaimResult("n1")

    def waiting(**fields: Any) -> ClaimResult | None:
        return claim_result(replace(claim, status=InstanceStatus(phase=Phase.PENDING, message="0/3 nodes", **fields)))

    assert waiting(reason=UNSCHEDULABLE) == ClaimResult("", "0/3 nodes")
    assert waiting(reason="QuotaExceeded") == ClaimResult("", "QuotaExceeded: 0/3 nodes")
    assert waiting(reason="Nominated", nominated="n1") is None


@pytest.mark.req("S4-24")
def test_a_request_fails_at_its_last_attempt_and_not_before() -> None:
    one = begun(request(), NOW)
    assert one.status.history[-1].why == "attempt 1"
    for number in (1, 2):
        one = refused(one, "too small", SETTINGS, NOW)
        assert (one.status.state, one.status.attempts, one.status.error) == ("Queued", number, "too small")
        one = begun(one, NOW)
        assert one.status.history[-1].why == f"attempt {number + 1}"
    last = refused(one, "too small", SETTINGS, NOW)
    assert (last.status.state, last.status.attempts, last.status.error) == ("Failed", 3, NO_NODES)
    found = placed(one, "n1", "10.0.0.1", NOW)
    assert (found.status.state, found.status.node, found.status.address) == ("Placed", "n1", "10.0.0.1")
    assert (found.status.error, found.status.reason) == ("", "")


def test_the_address_is_that_of_the_node() -> None:
    node = make_node("n1")
    assert address_of(replace(node, status=replace(node.status, address="10.0.0.7"))) == "10.0.0.7"
    assert address_of(None) == ""


# The sweep.


@pytest.mark.req("S4-34")
@pytest.mark.parametrize("state", ["Queued", "Processing"])
def test_a_request_without_a_machine_fails_when_its_time_is_over(state: VmRequestState) -> None:
    assert sweep(request(state=state, age=300)) == NOTHING
    assert sweep(request(state=state, age=301))["failed"] == [("r1", "Timeout", "no machine was found within 5m")]
    told = sweep(request(state=state, age=301, error="pool full"))["failed"]
    assert told == [("r1", "Timeout", "no machine was found within 5m: pool full")]


@pytest.mark.req("S4-34")
def test_a_placed_request_fails_unless_it_is_confirmed_in_time_and_its_machine_exists() -> None:
    claim = request("r1", "Placed")
    assert sweep(request(state="Placed", since=600, node="n1"), claims=(claim,)) == NOTHING
    late = sweep(request(state="Placed", since=601, node="n1"), claims=(claim,))
    assert late["failed"] == [("r1", "Timeout", "the virtual machine was not confirmed within 10m")]
    gone = sweep(request(state="Placed", node="n2"), claims=(claim,))
    assert gone["failed"] == [("r1", "NodeGone", "the machine n2 no longer exists")]
    assert sweep(request(state="Confirmed", age=9000, since=9000, node="n2"), claims=(claim,)) == NOTHING


@pytest.mark.req("S4-34")
@pytest.mark.parametrize(
    ("attempts", "limit"),
    # 60 s, and the longest pause after so many attempts: 10, 10, 20 or at most 40 s, and half of it.
    [(0, 75), (1, 75), (2, 90), (3, 120), (9, 120)],
)
def test_a_request_that_no_worker_processes_is_queued_again(attempts: int, limit: float) -> None:
    for state in ("Queued", "Processing"):
        assert sweep(request(state=state, since=limit, attempts=attempts)) == NOTHING
        assert sweep(request(state=state, since=limit + 1, attempts=attempts))["published"] == ["r1"]
    assert sweep(request(state="Confirmed", since=limit + 1, attempts=attempts)) == NOTHING


def test_resources_are_held_only_for_requests_that_hold_them() -> None:
    states: list[VmRequestState] = ["Processing", "Placed", "Confirmed", "Queued", "Released"]
    requests = [request(f"r{number}", state, node="n1") for number, state in enumerate(states)]
    counted = request("counted", "Confirmed", counted=True)
    found = sweep(*requests, counted, claims=(*requests, counted, request("unknown")))
    assert found["orphans"] == ["vm-r3", "vm-r4", "vm-counted", "vm-unknown"]


def test_every_request_is_swept_whatever_their_number() -> None:
    many = [request(f"r{number}", age=301) for number in range(1000)]
    assert len(sweep(*many)["failed"]) == 1000


def test_ended_requests_are_forgotten_by_age_and_beyond_the_newest() -> None:
    ages = {"a": 10, "b": 1000, "c": 1001, "d": 500, "e": 2000}
    over = [request(name, "Failed", since=age) for name, age in ages.items()]
    running = request("running", "Confirmed", since=9000, node="n1")

    def names(most: int) -> list[str]:
        return sorted(each.meta.name for each in at_once(outdated(over, most, 1000, NOW)))

    assert names(5) == names(9) == names(4) == ["c", "e"]
    assert names(2) == ["b", "c", "e"]
    assert names(0) == ["a", "b", "c", "d", "e"]
    assert sorted(sweep(*over, running, claims=(running,))["forgotten"]) == ["c", "e"]
