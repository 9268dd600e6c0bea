"""Makes orders, memories and inputs for the agent's tests."""

from __future__ import annotations

from typing import Any

from mandor.agent.order import Memory, Order, Policy, Supervision
from mandor.agent.sync import Decision, sync
from mandor.agent.sync_inputs import SyncInputs
from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, StopOrder
from mandor.model.lifecycle import Restart
from mandor.model.meta import Meta
from mandor.model.phase import Phase

NOW = 1_000_000.0
UID = "u1"
RESERVED = InstanceStatus(phase=Phase.RESERVED, since=NOW - 1)
MAIN: dict[str, Any] = {"main": {"command": ["run"]}}


def make_instance(
    *,
    stop: StopOrder | None = None,
    status: InstanceStatus = RESERVED,
    node: str = "n1",
    version: int = 5,
    uid: str = UID,
) -> Instance:
    return Instance(
        meta=Meta(name="web-0", namespace="default", uid=uid, version=version),
        spec=InstanceSpec(workload="web", release="web.1", index=0, node=node, stop=stop),
        status=status,
    )


def make_order(
    tasks: dict[str, Any] | None = None,
    *,
    policy: Policy = "always",
    stop: StopOrder | None = None,
    restart: Restart | None = None,
    status: InstanceStatus = RESERVED,
    epoch: int = 1,
    version: int = 5,
    uid: str = UID,
    **supervision: Any,
) -> Order:
    return Order(
        instance=make_instance(stop=stop, status=status, version=version, uid=uid),
        template=from_plain({"tasks": tasks or MAIN}, GroupTemplate),
        supervision=Supervision(policy=policy, restart=restart or Restart(), **supervision),
        cluster="c1",
        epoch=epoch,
    )


NOTHING_SEEN = SyncInputs(units=(), status=RESERVED)


def running(task: str = "main", attempt: int = 1, at: float = NOW) -> Observed:
    return Observed(unit=Unit(UID, task, attempt), phase=UnitPhase.RUNNING, started_at=at)


def starting(task: str = "main", attempt: int = 1) -> Observed:
    return Observed(unit=Unit(UID, task, attempt), phase=UnitPhase.STARTING)


def exited(
    code: int | None = 1,
    task: str = "main",
    attempt: int = 1,
    *,
    reason: str = "",
    at: float = NOW,
    ran: float = 0.0,
    message: str = "",
) -> Observed:
    return Observed(
        unit=Unit(UID, task, attempt),
        phase=UnitPhase.EXITED,
        exit_code=code,
        reason=reason or ("Completed" if code == 0 else "Error"),
        message=message,
        started_at=at - ran,
        finished_at=at,
    )


def decide(order: Order, *units: Observed, memory: Memory | None = None, now: float = NOW, **inputs: Any) -> Decision:
    status = inputs.pop("status", order.instance.status)
    memory = memory if memory is not None else Memory(engine="fake")
    return sync(order, memory, SyncInputs(units=units, status=status, **inputs), now)
