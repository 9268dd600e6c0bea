"""Machines for virtual machines: request, result, confirmation and cancellation."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import read, read_scope
from mandor.api.changes import FieldChange
from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation
from mandor.api.routes.queries import NameQuery, Namespace
from mandor.api.tasks import check_may_place
from mandor.errors import Conflict, Invalid
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key
from mandor.model.vm_request import CPU_MOST, MEMORY_MIB_MOST, Step, VmRequest, VmRequestSpec, VmRequestState
from mandor.store.base import Filter, Write
from mandor.store.update import deletion, update
from mandor.store.update import read as read_stored

TASKS_MOST = 1000


class MachineRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request for a machine that can hold a virtual machine of this size."""

    requested_cpu: Annotated[int, Note(ge=1, le=CPU_MOST, description="Cores.")]
    requested_memory: Annotated[int, Note(ge=1, le=MEMORY_MIB_MOST, description="MiB.")]
    requested_pool: str = "default"
    dedicated: bool = False
    """Whether the virtual machine gets a machine of its own, or, by the server's setting `vm_dedicated: class`, one
    that is marked as dedicated."""
    where: tuple[str, ...] = ()
    """Rules that the machine has to match, such as `zone == a`."""
    vm: str = ""
    """The name of the virtual machine, if it is known."""
    timeout_seconds: Annotated[float, Note(gt=0, le=86_400)] = 300.0
    """Time limit for finding a machine."""
    hold_seconds: Annotated[float, Note(gt=0, le=30 * 86_400)] = 3600.0
    """Time for which the reservation is held without a confirmation."""


class Accepted(Struct, frozen=True):
    task_id: str


class Machine(Struct, frozen=True):
    name: str
    ip: str


class Result(Struct, frozen=True, omit_defaults=True, kw_only=True):
    status: Literal["completed", "processing", "failed"]
    result: Machine | None = None
    error: str = ""


class RequestReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A request with its history."""

    task_id: str
    status: Literal["completed", "processing", "failed"]
    state: VmRequestState
    result: Machine | None = None
    error: str = ""
    reason: str = ""
    attempts: int = 0
    requested_cpu: int
    requested_memory: int
    requested_pool: str
    dedicated: bool = False
    history: tuple[Step, ...] = ()


class TasksQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    state: Annotated[str, Note(description="Only requests in this state.", max_length=20)] = ""
    pool: Annotated[str, Note(description="Only requests for this pool.", max_length=63)] = ""
    node: Annotated[str, Note(description="Only requests on this machine.", max_length=253)] = ""
    limit: Annotated[int, Note(description="Largest number of requests; the newest first.", ge=1, le=TASKS_MOST)] = 100


async def schedule(call: Call[NameQuery, MachineRequest]) -> Accepted:
    wanted = call.body
    try:
        spec = VmRequestSpec(
            cpu=wanted.requested_cpu,
            memory_mib=wanted.requested_memory,
            pool=wanted.requested_pool,
            dedicated=wanted.dedicated,
            where=wanted.where,
            vm=wanted.vm,
            place_seconds=wanted.timeout_seconds,
            hold_seconds=wanted.hold_seconds,
        )
    except ValueError as error:
        raise Invalid(str(error), hint=getattr(error, "hint", None)) from error
    task = await call.parts.vm_requests.take(call.caller, spec, call.query.namespace, call.address)
    return Accepted(task.meta.name)


async def result(call: Call[NameQuery, None]) -> Result:
    task = await _task(call)
    return Result(status=_status(task), result=_machine(task), error=_error(task))


async def show(call: Call[NameQuery, None]) -> RequestReport:
    return _report(await _task(call))


async def tasks(call: Call[TasksQuery, None]) -> list[RequestReport]:
    query = call.query
    seen = await read_scope(call.parts.store, call.caller, VmRequest.kind, Filter(query.namespace))
    listing = await call.parts.store.list(VmRequest.kind, seen.where)
    found = [
        each
        for each in listing.items
        if isinstance(each, VmRequest)
        and (seen.shows is None or seen.shows(each))
        and query.state.lower() in {"", each.status.state.lower()}
        and query.pool in {"", each.spec.pool}
        and query.node in {"", each.status.node}
    ]
    found.sort(key=lambda each: each.meta.created_at, reverse=True)
    return [_report(each) for each in found[: query.limit]]


async def confirm(call: Call[NameQuery, None]) -> RequestReport:
    """Confirm that the virtual machine exists: its reservation does not expire any more."""
    now = call.parts.clock.now()

    def change(task: VmRequest) -> VmRequest:
        if task.status.state == "Confirmed":
            return task
        return _moved(task, "Confirmed", now, f"confirmed by {call.caller.identity}")

    return await _changed(call, "confirm", change, free=False)


async def cancel(call: Call[NameQuery, None]) -> RequestReport:
    """Cancel a request, or release a confirmed machine: its reservation ends."""
    now = call.parts.clock.now()

    def change(task: VmRequest) -> VmRequest:
        if task.status.state in {"Cancelled", "Released"}:
            return task
        confirmed = task.status.state == "Confirmed"
        verb = "released" if confirmed else "cancelled"
        return _moved(task, "Released" if confirmed else "Cancelled", now, f"{verb} by {call.caller.identity}")

    return await _changed(call, "cancel", change, free=True)


def _moved(task: VmRequest, state: VmRequestState, now: float, why: str) -> VmRequest:
    try:
        return task.moved(state, now, why)
    except ValueError as error:
        raise Conflict(
            str(error), hint="`GET /schedule/{task_id}` returns its history", state=task.status.state
        ) from None


async def _changed(
    call: Call[NameQuery, Any], verb: str, change: Callable[[VmRequest], VmRequest], *, free: bool
) -> RequestReport:
    check_may_place(call.caller, call.query.namespace)
    key, store = _key(call), call.parts.store
    await read_stored(store, VmRequest, key)

    async def also(before: VmRequest, after: VmRequest) -> Sequence[Write]:
        states = FieldChange(path="status.state", before=before.status.state, after=after.status.state)
        record = call.parts.auditor.record(call.caller, verb, str(key), call.address, [states])
        return [await deletion(store, before.claim_key), record] if free else [record]

    return _report(await update(store, VmRequest, key, change, also=also))


def _key(call: Call[NameQuery, Any]) -> Key:
    return Key(VmRequest.kind, call.query.namespace, call.path["task_id"])


async def _task(call: Call[NameQuery, None]) -> VmRequest:
    found = await read(call.parts.store, call.caller, _key(call))
    assert isinstance(found, VmRequest)
    return found


def _status(task: VmRequest) -> Literal["completed", "processing", "failed"]:
    if task.status.state in {"Placed", "Confirmed"}:
        return "completed"
    return "processing" if task.status.state in {"Queued", "Processing"} else "failed"


def _machine(task: VmRequest) -> Machine | None:
    return Machine(task.status.node, task.status.address) if _status(task) == "completed" else None


def _error(task: VmRequest) -> str:
    if _status(task) != "failed":
        return ""
    return task.status.error if task.status.state == "Failed" else task.status.history[-1].why


def _report(task: VmRequest) -> RequestReport:
    spec, status = task.spec, task.status
    return RequestReport(
        task_id=task.meta.name,
        status=_status(task),
        state=status.state,
        result=_machine(task),
        error=status.error or _error(task),
        reason=status.reason,
        attempts=status.attempts,
        requested_cpu=spec.cpu,
        requested_memory=spec.memory_mib,
        requested_pool=spec.pool,
        dedicated=spec.dedicated,
        history=status.history,
    )


OPERATIONS = [
    Operation(
        method="POST",
        path="/schedule",
        name="schedule_vm",
        summary="Request a machine for a virtual machine",
        tag="virtual machines",
        gate=Gate(verbs=("create",), kind="task"),
        handler=schedule,
        query=NameQuery,
        body=MachineRequest,
        result=Accepted,
    ),
    Operation(
        method="GET",
        path="/result/{task_id}",
        name="vm_result",
        summary="Read the result of a request: completed, processing or failed",
        tag="virtual machines",
        handler=result,
        query=NameQuery,
        result=Result,
        refuses=("not_found",),
    ),
    Operation(
        method="GET",
        path="/schedule/{task_id}",
        name="vm_task",
        summary="Read a request with its history",
        tag="virtual machines",
        handler=show,
        query=NameQuery,
        result=RequestReport,
        refuses=("not_found",),
    ),
    Operation(
        method="POST",
        path="/schedule/{task_id}/confirm",
        name="confirm_vm",
        summary="Confirm that the virtual machine exists; its reservation is kept",
        tag="virtual machines",
        handler=confirm,
        query=NameQuery,
        result=RequestReport,
        refuses=("not_found", "conflict"),
    ),
    Operation(
        method="POST",
        path="/schedule/{task_id}/cancel",
        name="cancel_vm",
        summary="Cancel a request, or release its machine",
        tag="virtual machines",
        handler=cancel,
        query=NameQuery,
        result=RequestReport,
        refuses=("not_found", "conflict"),
    ),
    Operation(
        method="DELETE",
        path="/schedule/{task_id}",
        name="delete_vm_task",
        summary="Cancel a request (same as POST …/cancel)",
        tag="virtual machines",
        handler=cancel,
        query=NameQuery,
        result=RequestReport,
        refuses=("not_found", "conflict"),
    ),
    Operation(
        method="GET",
        path="/tasks",
        name="vm_tasks",
        summary="List the newest requests, by state, pool or machine",
        tag="virtual machines",
        handler=tasks,
        query=TasksQuery,
        result=list[RequestReport],
        lane=Lane.BULK,
    ),
]
