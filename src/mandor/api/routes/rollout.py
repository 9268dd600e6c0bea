"""Rollouts: status and history, and orders to pause, resume, promote, abort or undo."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import read
from mandor.api.operation import Call, Operation
from mandor.api.parts import ApiParts
from mandor.api.rollout import OrderWord, ordered
from mandor.api.routes.objects import TRIES, author_of, key_of
from mandor.api.routes.queries import NameQuery
from mandor.api.writing import commit_as
from mandor.errors import Conflict, Invalid
from mandor.lib.steps import Steps, chosen
from mandor.lib.turns import in_turns
from mandor.model.meta import InvalidField, Object
from mandor.model.rollout import Rollout
from mandor.model.workload import Release, Workload
from mandor.store.base import Filter, Put


class RolloutOrder(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    order: Annotated[OrderWord, Note(description="The order.")]
    to: Annotated[int, Note(description="For undo: the number of a release.", ge=1)] | None = None


class PastRelease(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored release."""

    name: str
    sequence: int
    created_at: float
    cause: str = ""
    """The change that created the release."""
    healthy: bool = False
    """Whether all instances were healthy with it once."""
    current: bool = False
    """Whether its template is the current one."""
    instances: int = 0
    """Number of instances of the release."""


class RolloutReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    workload: str
    rollout: Rollout | None = None
    history: tuple[PastRelease, ...] = ()


async def get(call: Call[NameQuery, None]) -> RolloutReport:
    workload = await _workload(call)
    releases = await _releases(call.parts, workload)
    where = Filter(namespace=workload.meta.namespace)
    listing = await call.parts.store.list("instance", where)
    counts = Counter(await in_turns(_releases_in_use(listing.items, workload.meta.name)))
    rollout = workload.status.rollout
    history = tuple(
        PastRelease(
            name=each.meta.name,
            sequence=each.spec.sequence,
            created_at=each.meta.created_at,
            cause=each.spec.cause,
            healthy=rollout is not None and each.meta.name in rollout.proven,
            current=each.meta.name == workload.status.release,
            instances=counts.get(each.meta.name, 0),
        )
        for each in sorted(releases, key=lambda each: each.spec.sequence)
    )
    return RolloutReport(workload=workload.meta.name, rollout=rollout, history=history)


def _releases_in_use(instances: Sequence[Object], workload: str) -> Steps[list[str]]:
    """Return the release of each instance of the workload that has not ended."""
    return chosen(
        instances,
        lambda piece: [
            each.spec.release for each in piece if each.spec.workload == workload and not each.status.phase.over
        ],
        each=8,
    )


async def order(call: Call[NameQuery, RolloutOrder]) -> Workload:
    for attempt in range(TRIES):
        workload = await _workload(call)
        releases = await _releases(call.parts, workload)
        try:
            spec = ordered(workload, releases, call.body.order, call.body.to)
        except InvalidField as error:
            raise Invalid(str(error), hint=error.hint) from error
        if spec == workload.spec:
            return workload
        value = workload.changed(spec=spec)
        try:
            revision = await commit_as(call.parts, author_of(call, f"rollout {call.body.order}"), [Put(value)])
        except Conflict as error:
            if attempt == TRIES - 1 or "version" not in error.facts:
                raise
            continue
        return value.stamped(version=revision)
    raise AssertionError("unreachable")


async def _workload(call: Call[NameQuery, RolloutOrder] | Call[NameQuery, None]) -> Workload:
    key = key_of(Workload, call.path["name"], call.query.namespace)
    found = await read(call.parts.store, call.caller, key)
    assert isinstance(found, Workload)
    return found


async def _releases(parts: ApiParts, workload: Workload) -> Sequence[Release]:
    listing = await parts.store.list(Release.kind, Filter(namespace=workload.meta.namespace))
    mine = [each for each in listing.items if isinstance(each, Release)]
    return [each for each in mine if each.spec.workload == workload.meta.name]


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/workloads/{name}/rollout",
        name="get_rollout",
        summary="Read the status of the latest rollout of a service, and its releases",
        tag="workloads",
        handler=get,
        query=NameQuery,
        result=RolloutReport,
        refuses=("not_found",),
    ),
    Operation(
        method="POST",
        path="/v1/workloads/{name}/rollout",
        name="order_rollout",
        summary="Pause, resume, promote or abort a rollout, or return to an earlier release",
        tag="workloads",
        handler=order,
        query=NameQuery,
        body=RolloutOrder,
        result=Workload,
        refuses=("not_found", "conflict"),
    ),
]
