"""Spare machines for an upgrade: prepare, read and release."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_URL, uuid4, uuid5

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import read
from mandor.api.gate import CHANGES, Gate
from mandor.api.operation import Call, Operation
from mandor.api.routes.queries import NameQuery
from mandor.api.tasks import check_may_place
from mandor.errors import Conflict, Invalid, TooMany
from mandor.lib.clock import Clock
from mandor.lib.words import did_you_mean
from mandor.model.meta import Key, Meta
from mandor.model.spare import COUNT_MOST, Spare, SparePhase, SpareSpec, SpareStatus, SpareStep, SpareVm
from mandor.model.vm_request import CPU_MOST, MEMORY_MIB_MOST
from mandor.store.base import Put, Store

TRIES = 10
OPEN_MOST = 500
"""Spares that may exist at once."""


class Size(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cpu: Annotated[int, Note(ge=1, le=CPU_MOST, description="Cores.")]
    memory: Annotated[int, Note(ge=1, le=MEMORY_MIB_MOST, description="MiB.")]


class SpareRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    count: Annotated[int, Note(ge=1, le=COUNT_MOST)] = 1
    size: Size
    pool: str = "default"
    cluster: str
    """Cluster that the machines join; a pipeline has to be configured for it."""
    release_after_seconds: Annotated[float, Note(ge=0, le=90 * 86_400)] = 0.0
    """Seconds after they are ready at which the machines are removed; 0: only on request."""


class ReleaseRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Annotated[str, Note(max_length=200)] = "the upgrade is done"
    gone: bool = False
    """Whether the machines were removed by hand: the pipeline is not run, and their reservation is released."""


class SpareMachine(Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    state: Literal["Placing", "Creating", "Joining", "Ready", "Gone"]
    task_id: str
    """Id of the request; `GET /schedule/{task_id}` returns it."""
    node: str = ""
    ip: str = ""
    message: str = ""


class SpareReport(Struct, frozen=True, omit_defaults=True, kw_only=True):
    id: str
    status: SparePhase
    cluster: str
    pool: str
    message: str = ""
    machines: tuple[SpareMachine, ...]
    history: tuple[SpareStep, ...] = ()


async def prepare_spare(
    store: Store,
    clock: Clock,
    spec: SpareSpec,
    namespace: str,
    who: str,
    record: Callable[[Put], Sequence[Put]] = lambda made: (),
) -> Spare:
    """Store a spare and return it; each of its machines has a request that reserves room for it.

    `record`: makes the audit record for the same commit.
    """
    identity, now = str(uuid4()), clock.now()
    vms = tuple(
        SpareVm(
            name=f"spare-{identity[:8]}-{number}", task=str(uuid5(NAMESPACE_URL, f"{identity}/{number}")), since=now
        )
        for number in range(spec.count)
    )
    first = SpareStep("Preparing", now, f"requested by {who}")
    spare = Spare(
        meta=Meta(name=identity, namespace=namespace),
        spec=spec,
        status=SpareStatus(since=now, vms=vms, history=(first,)),
    )
    made = Put(spare)
    await store.commit(made, *record(made))
    return spare


async def prepare(call: Call[NameQuery, SpareRequest]) -> SpareReport:
    wanted, namespace = call.body, call.query.namespace
    check_may_place(call.caller, namespace)
    known = call.parts.spare_clusters
    if wanted.cluster not in known:
        hint = did_you_mean(wanted.cluster, known) if known else "start the servers with --pipelines FILE"
        raise Invalid(f"there is no pipeline for the cluster {wanted.cluster}", hint=hint, path="cluster")
    try:
        spec = SpareSpec(
            count=wanted.count,
            cpu=wanted.size.cpu,
            memory_mib=wanted.size.memory,
            pool=wanted.pool,
            cluster=wanted.cluster,
            release_after=wanted.release_after_seconds,
        )
    except ValueError as error:
        raise Invalid(str(error)) from error
    await call.parts.vm_requests.check_pool(spec.pool)
    there = (await call.parts.store.list(Spare.kind)).items
    if sum(isinstance(each, Spare) and not each.ended for each in there) >= OPEN_MOST:
        raise TooMany(f"there are {OPEN_MOST} spares", hint="release spares that are no longer needed", seconds=60.0)

    def record(made: Put) -> Sequence[Put]:
        return call.parts.auditor.of_commit(call.caller, "prepare", call.address, [(made, None)])

    store, clock = call.parts.store, call.parts.clock
    return _report(await prepare_spare(store, clock, spec, namespace, call.caller.identity, record))


async def show(call: Call[NameQuery, None]) -> SpareReport:
    return _report(await _spare(call))


async def release(call: Call[NameQuery, ReleaseRequest | None]) -> SpareReport:
    """Release a spare: its machines are removed, and their reservations end."""
    check_may_place(call.caller, call.query.namespace)
    wanted = call.body or ReleaseRequest()
    for _ in range(TRIES):
        spare = await _spare(call)
        after = spare.changed(spec=_released(spare.spec, wanted))
        if spare.ended or after == spare:
            return _report(spare)
        try:
            record = call.parts.auditor.of_commit(call.caller, "release", call.address, [(Put(after), spare)])
            await call.parts.store.commit(Put(after), *record)
            return _report(after)
        except Conflict:
            continue
    raise Conflict("the spare keeps changing", hint="try again")


def _released(spec: SpareSpec, wanted: ReleaseRequest) -> SpareSpec:
    """Return the spec of a released spare; the first reason is kept."""
    reason = spec.released or wanted.reason or ReleaseRequest().reason
    return msgspec.structs.replace(spec, released=reason, gone=spec.gone or wanted.gone)


async def _spare(call: Call[NameQuery, Any]) -> Spare:
    key = Key(Spare.kind, call.query.namespace, call.path["id"])
    found = await read(call.parts.store, call.caller, key)
    assert isinstance(found, Spare)
    return found


def _report(spare: Spare) -> SpareReport:
    return SpareReport(
        id=spare.meta.name,
        status=spare.status.phase,
        cluster=spare.spec.cluster,
        pool=spare.spec.pool,
        message=spare.status.message,
        machines=tuple(
            SpareMachine(name=vm.name, state=vm.state, task_id=vm.task, node=vm.node, ip=vm.address, message=vm.message)
            for vm in spare.status.vms
        ),
        history=spare.status.history,
    )


OPERATIONS = [
    Operation(
        method="POST",
        path="/spare/prepare",
        name="prepare_spare",
        summary="Prepare spare machines for an upgrade",
        tag="virtual machines",
        gate=Gate(verbs=CHANGES),
        handler=prepare,
        query=NameQuery,
        body=SpareRequest,
        result=SpareReport,
    ),
    Operation(
        method="GET",
        path="/spare/{id}",
        name="spare",
        summary="Read the progress and history of a spare",
        tag="virtual machines",
        handler=show,
        query=NameQuery,
        result=SpareReport,
        refuses=("not_found",),
    ),
    Operation(
        method="POST",
        path="/spare/{id}/release",
        name="release_spare",
        summary="Release a spare: its machines are removed",
        tag="virtual machines",
        handler=release,
        query=NameQuery,
        body=ReleaseRequest,
        body_optional=True,
        result=SpareReport,
        refuses=("not_found", "conflict"),
    ),
]
