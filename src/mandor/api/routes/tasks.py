"""Machines for virtual machines: ask for one, see what came of it, confirm or call off."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import read, sight
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


class Ask(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine for a virtual machine of this size."""

    requested_cpu: Annotated[int, Note(ge=1, le=CPU_MOST, description="Cores.")]
    requested_memory: Annotated[int, Note(ge=1, le=MEMORY_MIB_MOST, description="MiB.")]
    requested_pool: str = "default"
    dedicated: bool = False
    """It wants the machine for itself alone."""
    where: tuple[str, ...] = ()
    """Only machines that keep all these rules: `zone == a`."""
    vm: str = ""
    """The name of the virtual machine, if it is known already."""
    timeout_seconds: Annotated[float, Note(gt=0, le=86_400)] = 300.0
    """It fails if it has found no machine by then."""
    hold_seconds: Annotated[float, Note(gt=0, le=30 * 86_400)] = 3600.0
    """The room is held so long for a virtual machine that nobody confirms."""


class Accepted(Struct, frozen=True):
    task_id: str


class Machine(Struct, frozen=True):
    name: str
    ip: str


class Result(Struct, frozen=True, omit_defaults=True, kw_only=True):
    status: Literal["completed", "processing", "failed"]
    result: Machine | None = None
    error: str = ""


class Story(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A task with its whole history."""

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
    state: Annotated[str, Note(description="Only those in this state.", max_length=20)] = ""
    pool: Annotated[str, Note(description="Only those of this pool.", max_length=63)] = ""
    node: Annotated[str, Note(description="Only those on this machine.", max_length=253)] = ""
    limit: Annotated[int, Note(description="At most so many, the newest first.", ge=1, le=TASKS_MOST)] = 100


async def schedule(call: Call[NameQuery, Ask]) -> Accepted:
    ask = call.body
    try:
        spec = VmRequestSpec(
            cpu=ask.requested_cpu,
            memory_mib=ask.requested_memory,
            pool=ask.requested_pool,
            dedicated=ask.dedicated,
            where=ask.where,
            vm=ask.vm,
            place_seconds=ask.timeout_seconds,
            hold_seconds=ask.hold_seconds,
        )
    except ValueError as error:
        raise Invalid(str(error), hint=getattr(error, "hint", None)) from error
    task = await call.parts.tasks.take(call.caller, spec, call.query.namespace, call.address)
    return Accepted(task.meta.name)


async def result(call: Call[NameQuery, None]) -> Result:
    task = await _task(call)
    return Result(status=_status(task), result=_machine(task), error=_error(task))


async def story(call: Call[NameQuery, None]) -> Story:
    return _story(await _task(call))


async def tasks(call: Call[TasksQuery, None]) -> list[Story]:
    query = call.query
    seen = await sight(call.parts.store, call.caller, VmRequest.kind, Filter(query.namespace))
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
    return [_story(each) for each in found[: query.limit]]


async def confirm(call: Call[NameQuery, None]) -> Story:
    """The virtual machine is there: what is held for it is not given back any more when the time is over."""
    now = call.parts.clock.now()

    def change(task: VmRequest) -> VmRequest:
        if task.status.state == "Confirmed":
            return task
        return _moved(task, "Confirmed", now, f"confirmed by {call.caller.identity}")

    return await _changed(call, "confirm", change, free=False)


async def cancel(call: Call[NameQuery, None]) -> Story:
    """Call a task off, or give a confirmed machine back: nothing is held for it any more."""
    now = call.parts.clock.now()

    def change(task: VmRequest) -> VmRequest:
        if task.status.state in {"Cancelled", "Released"}:
            return task
        confirmed = task.status.state == "Confirmed"
        verb = "given back" if confirmed else "called off"
        return _moved(task, "Released" if confirmed else "Cancelled", now, f"{verb} by {call.caller.identity}")

    return await _changed(call, "cancel", change, free=True)


def _moved(task: VmRequest, state: VmRequestState, now: float, why: str) -> VmRequest:
    try:
        return task.moved(state, now, why)
    except ValueError as error:
        raise Conflict(str(error), hint="`GET /schedule/{task_id}` tells its story", state=task.status.state) from None


async def _changed(
    call: Call[NameQuery, Any], verb: str, change: Callable[[VmRequest], VmRequest], *, free: bool
) -> Story:
    check_may_place(call.caller, call.query.namespace)
    key, store = _key(call), call.parts.store
    await read_stored(store, VmRequest, key)

    async def also(before: VmRequest, after: VmRequest) -> Sequence[Write]:
        states = FieldChange(path="status.state", before=before.status.state, after=after.status.state)
        record = call.parts.auditor.record(call.caller, verb, str(key), call.address, [states])
        return [await deletion(store, before.claim_key), record] if free else [record]

    return _story(await update(store, VmRequest, key, change, also=also))


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


def _story(task: VmRequest) -> Story:
    spec, status = task.spec, task.status
    return Story(
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
        summary="Ask for a machine for a virtual machine",
        tag="virtual machines",
        gate=Gate(verbs=("create",), kind="task"),
        handler=schedule,
        query=NameQuery,
        body=Ask,
        result=Accepted,
    ),
    Operation(
        method="GET",
        path="/result/{task_id}",
        name="vm_result",
        summary="What came of it: completed, processing or failed",
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
        summary="A task with its whole history",
        tag="virtual machines",
        handler=story,
        query=NameQuery,
        result=Story,
        refuses=("not_found",),
    ),
    Operation(
        method="POST",
        path="/schedule/{task_id}/confirm",
        name="confirm_vm",
        summary="The virtual machine is there: its room is kept",
        tag="virtual machines",
        handler=confirm,
        query=NameQuery,
        result=Story,
        refuses=("not_found", "conflict"),
    ),
    Operation(
        method="POST",
        path="/schedule/{task_id}/cancel",
        name="cancel_vm",
        summary="Call a task off, or give its machine back",
        tag="virtual machines",
        handler=cancel,
        query=NameQuery,
        result=Story,
        refuses=("not_found", "conflict"),
    ),
    Operation(
        method="DELETE",
        path="/schedule/{task_id}",
        name="delete_vm_task",
        summary="The same as cancel",
        tag="virtual machines",
        handler=cancel,
        query=NameQuery,
        result=Story,
        refuses=("not_found", "conflict"),
    ),
    Operation(
        method="GET",
        path="/tasks",
        name="vm_tasks",
        summary="The newest tasks, by state, pool or machine",
        tag="virtual machines",
        handler=tasks,
        query=TasksQuery,
        result=list[Story],
        lane=Lane.BULK,
    ),
]
