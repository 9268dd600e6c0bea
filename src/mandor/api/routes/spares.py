"""Spare machines for an upgrade: prepare some, see how far they are, give them back."""

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
"""So many spares may be there at the same time; who comes then has to release some first."""


class Size(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cpu: Annotated[int, Note(ge=1, le=CPU_MOST, description="Cores.")]
    memory: Annotated[int, Note(ge=1, le=MEMORY_MIB_MOST, description="MiB.")]


class SpareAsk(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    count: Annotated[int, Note(ge=1, le=COUNT_MOST)] = 1
    size: Size
    pool: str = "default"
    cluster: str
    """Whose nodes they become; a pipeline is configured for it."""
    release_after_seconds: Annotated[float, Note(ge=0, le=90 * 86_400)] = 0.0
    """They are taken away so long after they were ready; 0: when somebody says so."""


class ReleaseAsk(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    reason: Annotated[str, Note(max_length=200)] = "the upgrade is done"
    gone: bool = False
    """Its machines were taken away by hand: the pipeline is not asked, and their room is given back."""


class SpareMachine(Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str
    state: Literal["Placing", "Creating", "Joining", "Ready", "Gone"]
    task_id: str
    """`GET /schedule/{task_id}` tells how its machine was found."""
    node: str = ""
    ip: str = ""
    message: str = ""


class SpareStory(Struct, frozen=True, omit_defaults=True, kw_only=True):
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
    """Stored when this returns: each machine has a task, which finds its place and holds room there. `record`: makes
    the audit record of it, for the same commit."""
    identity, now = str(uuid4()), clock.now()
    vms = tuple(
        SpareVm(
            name=f"spare-{identity[:8]}-{number}", task=str(uuid5(NAMESPACE_URL, f"{identity}/{number}")), since=now
        )
        for number in range(spec.count)
    )
    first = SpareStep("Preparing", now, f"asked for by {who}")
    spare = Spare(
        meta=Meta(name=identity, namespace=namespace),
        spec=spec,
        status=SpareStatus(since=now, vms=vms, history=(first,)),
    )
    made = Put(spare)
    await store.commit(made, *record(made))
    return spare


async def prepare(call: Call[NameQuery, SpareAsk]) -> SpareStory:
    ask, namespace = call.body, call.query.namespace
    check_may_place(call.caller, namespace)
    known = call.parts.spare_clusters
    if ask.cluster not in known:
        hint = did_you_mean(ask.cluster, known) if known else "start the servers with --pipelines FILE"
        raise Invalid(f"there is no pipeline for the cluster {ask.cluster}", hint=hint, path="cluster")
    try:
        spec = SpareSpec(
            count=ask.count,
            cpu=ask.size.cpu,
            memory_mib=ask.size.memory,
            pool=ask.pool,
            cluster=ask.cluster,
            release_after=ask.release_after_seconds,
        )
    except ValueError as error:
        raise Invalid(str(error)) from error
    await call.parts.tasks.check_pool(spec.pool)
    there = (await call.parts.store.list(Spare.kind)).items
    if sum(isinstance(each, Spare) and not each.ended for each in there) >= OPEN_MOST:
        raise TooMany(f"there are {OPEN_MOST} spares", hint="release those that nobody needs", seconds=60.0)

    def record(made: Put) -> Sequence[Put]:
        return call.parts.auditor.of_commit(call.caller, "prepare", call.address, [(made, None)])

    store, clock = call.parts.store, call.parts.clock
    return _story(await prepare_spare(store, clock, spec, namespace, call.caller.identity, record))


async def show(call: Call[NameQuery, None]) -> SpareStory:
    return _story(await _spare(call))


async def release(call: Call[NameQuery, ReleaseAsk | None]) -> SpareStory:
    """The upgrade is done, or called off: they are taken away, and their room is given back."""
    check_may_place(call.caller, call.query.namespace)
    ask = call.body or ReleaseAsk()
    for _ in range(TRIES):
        spare = await _spare(call)
        after = spare.changed(spec=_released(spare.spec, ask))
        if spare.ended or after == spare:
            return _story(spare)
        try:
            record = call.parts.auditor.of_commit(call.caller, "release", call.address, [(Put(after), spare)])
            await call.parts.store.commit(Put(after), *record)
            return _story(after)
        except Conflict:
            continue
    raise Conflict("the spare keeps changing", hint="try again")


def _released(spec: SpareSpec, ask: ReleaseAsk) -> SpareSpec:
    """The first reason stays."""
    reason = spec.released or ask.reason or ReleaseAsk().reason
    return msgspec.structs.replace(spec, released=reason, gone=spec.gone or ask.gone)


async def _spare(call: Call[NameQuery, Any]) -> Spare:
    key = Key(Spare.kind, call.query.namespace, call.path["id"])
    found = await read(call.parts.store, call.caller, key)
    assert isinstance(found, Spare)
    return found


def _story(spare: Spare) -> SpareStory:
    return SpareStory(
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
        summary="Have spare machines made for an upgrade",
        tag="virtual machines",
        gate=Gate(verbs=CHANGES),
        handler=prepare,
        query=NameQuery,
        body=SpareAsk,
        result=SpareStory,
    ),
    Operation(
        method="GET",
        path="/spare/{id}",
        name="spare",
        summary="How far a spare is, with its history",
        tag="virtual machines",
        handler=show,
        query=NameQuery,
        result=SpareStory,
        refuses=("not_found",),
    ),
    Operation(
        method="POST",
        path="/spare/{id}/release",
        name="release_spare",
        summary="The upgrade is done: its machines are taken away",
        tag="virtual machines",
        handler=release,
        query=NameQuery,
        body=ReleaseAsk,
        body_optional=True,
        result=SpareStory,
        refuses=("not_found", "conflict"),
    ),
]
