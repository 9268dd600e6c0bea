"""Plan for VM requests: the next step of a request, from its claim and the clock, and the sweep over all."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

from mandor.baremetal.settings import VmRequestSettings
from mandor.lib.quantity import Seconds
from mandor.lib.steps import FEW, Steps, chosen, ordered, pieces
from mandor.model.instance import UNSCHEDULABLE, Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.spare import Spare
from mandor.model.vm_request import VmRequest

NO_NODES = "No available nodes"


class ClaimResult(NamedTuple):
    """The scheduler's decision about a claim."""

    node: str
    """The chosen node; empty: the claim could not be placed."""
    why: str = ""


def claim_result(claim: Instance) -> ClaimResult | None:
    """Return the decision, or None while there is none."""
    if claim.spec.node:
        return ClaimResult(claim.spec.node)
    status = claim.status
    if status.phase is Phase.PENDING and status.reason and not status.nominated:
        return ClaimResult(
            "", status.message if status.reason == UNSCHEDULABLE else f"{status.reason}: {status.message}"
        )
    return None


def begun(request: VmRequest, now: float) -> VmRequest:
    return request.moved("Processing", now, f"attempt {request.status.attempts + 1}")


def placed(request: VmRequest, node: str, address: str, now: float) -> VmRequest:
    return request.moved("Placed", now, f"on {node}", node=node, address=address, error="", reason="")


def refused(request: VmRequest, why: str, settings: VmRequestSettings, now: float) -> VmRequest:
    """Return the request after a failed attempt: queued again, or failed after the last one."""
    tries = request.status.attempts + 1
    if tries >= settings.attempts:
        return request.moved("Failed", now, why, attempts=tries, error=NO_NODES, reason="NoNode")
    return request.moved("Queued", now, why, attempts=tries, error=why, reason="NoNode")


@dataclass(slots=True)
class Sweep:
    """Actions for overdue, abandoned and old requests."""

    failed: list[tuple[VmRequest, str, str]] = field(default_factory=list)
    """Requests to fail, each with the reason and the error."""
    published: list[VmRequest] = field(default_factory=list)
    """Requests to queue again, because their worker is gone."""
    forgotten: list[VmRequest] = field(default_factory=list)
    orphans: list[Instance] = field(default_factory=list)
    """Claims whose request no longer holds resources."""


def plan_sweep(
    requests: Sequence[VmRequest], claims: Sequence[Instance], nodes: set[str], settings: VmRequestSettings, now: float
) -> Steps[Sweep]:
    sweep, over, holding = Sweep(), list[VmRequest](), set[Key]()
    for piece in pieces(requests, FEW):
        for request in piece:
            if request.holds:
                holding.add(request.claim_key)
            found = _fault(request, nodes, now)
            if found is not None:
                sweep.failed.append((request, *found))
            elif request.ended or request.status.counted:
                over.append(request)
            elif _stuck(request, settings, now):
                sweep.published.append(request)
        yield 12 * len(piece)
    sweep.forgotten = yield from outdated(over, settings.kept_most, settings.kept_seconds, now)
    sweep.orphans = yield from chosen(
        claims, lambda piece: [claim for claim in piece if claim.key not in holding], each=2
    )
    return sweep


Past = TypeVar("Past", VmRequest, Spare)


def outdated(over: Sequence[Past], most: int, seconds: float, now: float) -> Steps[list[Past]]:
    """Return the ended objects that are older than `seconds`, or beyond the newest `most`."""
    old = yield from chosen(over, lambda piece: [each for each in piece if now - each.status.since > seconds])
    if len(over) <= most:
        return old
    newest = yield from ordered(over, key=lambda each: -each.status.since)
    kept = yield from chosen(newest[:most], lambda piece: [each for each in piece if now - each.status.since > seconds])
    return kept + newest[most:]


def _fault(request: VmRequest, nodes: set[str], now: float) -> tuple[Literal["Timeout", "NodeGone"], str] | None:
    spec, status = request.spec, request.status
    if status.state in {"Queued", "Processing"} and now - request.meta.created_at > spec.place_seconds:
        waited = Seconds(round(spec.place_seconds))
        return "Timeout", f"no machine was found within {waited}" + (f": {status.error}" if status.error else "")
    if status.state == "Placed":
        if now - status.since > spec.hold_seconds:
            return "Timeout", f"the virtual machine was not confirmed within {Seconds(round(spec.hold_seconds))}"
        if status.node not in nodes:
            return "NodeGone", f"the machine {status.node} no longer exists"
    return None


def _stuck(request: VmRequest, settings: VmRequestSettings, now: float) -> bool:
    """Return whether no worker has processed the request for longer than the longest pause between attempts."""
    status = request.status
    idle = now - status.since
    if idle <= settings.stuck_seconds or status.state not in {"Queued", "Processing"}:
        return False
    return idle > settings.stuck_seconds + settings.pause.after(max(status.attempts, 1)) * (1 + settings.jitter)


def address_of(node: Node | None) -> str:
    return node.status.address if node is not None else ""
