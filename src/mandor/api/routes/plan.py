"""Plan: a forecast of an apply, a drain, the loss of a node or another configuration; nothing is written."""

from typing import Annotated

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.apply import plan_apply
from mandor.api.foreign import Read, text_in
from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import JSON, Call, Operation, Text
from mandor.api.plan import ForecastChanges, PlanReport, report
from mandor.api.routes.apply import TAKES, ManifestFile, files_in, read_files
from mandor.api.routes.queries import Format, Namespace, Strict
from mandor.api.scheduling import ForecastWorkspace
from mandor.api.writing import Author
from mandor.errors import Invalid, NotFound, TooLarge, Unavailable
from mandor.lib.words import did_you_mean
from mandor.model.codec import encode
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.node import Node
from mandor.model.workload import Workload, WorkloadSpec
from mandor.placement.config import SchedulerConfig, read_config

INSTANCES_MOST = 100_000
"""Instances that the workloads of one plan may ask for."""

NodeNames = tuple[Annotated[str, Note(max_length=253)], ...]


class PlanQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    format: Format = ""
    strict: Strict = False
    drain: Annotated[NodeNames, Note(description="Node to drain; may be given several times.")] = ()
    without: Annotated[NodeNames, Note(description="Node to lose; may be given several times.")] = ()


class PlanBody(Struct, frozen=True, forbid_unknown_fields=True):
    files: Annotated[list[ManifestFile], Note(max_length=1000)] = []
    profile: ManifestFile | None = None
    """A configuration of the scheduler to use instead of the current one."""


async def plan(call: Call[PlanQuery, bytes]) -> Text:
    call.caller.require_somewhere("plan", "workload", what="make plans")
    controls = call.parts.scheduling.controls
    if controls is None:
        raise Unavailable("this server cannot make plans")
    body = _body(call)
    if body.profile is not None:
        # Cluster-wide operators and admins have this right: a role for some namespaces has none on the cluster.
        call.caller.require("debug", "cluster", what="plan with another configuration of the scheduler")
    await _check_nodes(call)
    if body.profile is not None:
        record = call.parts.auditor.record(call.caller, "plan", f"profile {body.profile.name[:200]}", call.address)
        await call.parts.store.commit(record)
    read = await _read(call, body)
    author = Author(call.caller, call.address, "plan")
    applied = await plan_apply(call.parts, author, read.documents, forecast=True)
    puts = tuple(applied.values)
    wanted = sum(_wanted(each.spec, len(applied.nodes)) for each in puts if isinstance(each, Workload))
    if wanted > INSTANCES_MOST:
        raise TooLarge(
            f"the plan has {wanted:,} instances; at most {INSTANCES_MOST:,} are allowed", most=INSTANCES_MOST
        )

    def answer(workspace: ForecastWorkspace) -> bytes:
        config = _config(body, workspace)
        drain, without = tuple(dict.fromkeys(call.query.drain)), tuple(dict.fromkeys(call.query.without))
        return encode(
            report(
                workspace,
                controls,
                ForecastChanges(puts, drain, without, config),
                now=call.parts.clock.now(),
                results=tuple(applied.results.values()),
                revision=applied.revision,
                imported=read.imported,
                sees=call.caller.sees,
            )
        )

    return Text(await call.parts.forecasts.run(call.caller.identity, answer))


def _wanted(spec: WorkloadSpec, nodes: int) -> int:
    """Return the largest number of instances that a workload may have."""
    return sum(nodes if spec.per_node else group.count for group in spec.groups.values())


def _body(call: Call[PlanQuery, bytes]) -> PlanBody:
    """Return the body: JSON with files and a profile, or a manifest as for an apply."""
    most = call.parts.settings.manifest_bytes_most
    if call.content_type == JSON:
        try:
            body = msgspec.json.decode(call.body or b"{}", type=PlanBody)
        except msgspec.DecodeError:
            pass
        else:
            size = sum(len(each.text) for each in (*body.files, *([body.profile] if body.profile else [])))
            if size > most:
                raise TooLarge(f"the files have {size} characters; at most {most} are allowed", most=most)
            if not (body.files or body.profile or call.query.drain or call.query.without):
                raise Invalid(
                    "the request contains nothing to plan",
                    hint="send `files` or a `profile`, or set `drain` or `without`",
                )
            return body
    files = files_in(call.body, call.content_type, most)
    return PlanBody(
        [ManifestFile(name, text if isinstance(text, str) else text_in(text, name)) for name, text in files]
    )


async def _check_nodes(call: Call[PlanQuery, bytes]) -> None:
    names = {*call.query.drain, *call.query.without}
    if not names:
        return
    known = {each.meta.name for each in (await call.parts.store.list(Node.kind)).items}
    for name in sorted(names - known):
        raise NotFound(f"there is no node called {name}", hint=did_you_mean(name, known))
    for name in sorted({*call.query.drain} & {*call.query.without}):
        raise Invalid(f"{name} cannot be both drained and lost", parameter="without")


async def _read(call: Call[PlanQuery, bytes], body: PlanBody) -> Read:
    files = [(each.name, each.text) for each in body.files]
    return await read_files(call, files, check_engines=True) if files else Read([])


def _config(body: PlanBody, workspace: ForecastWorkspace) -> SchedulerConfig | None:
    if body.profile is None:
        return None
    return read_config(
        body.profile.text.encode(), workspace.registry, filename=body.profile.name, server=workspace.config
    )


OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/plan",
        name="plan",
        summary="Forecast an apply, a drain, the loss of a node or another configuration; nothing is written",
        tag="placement",
        gate=Gate(verbs=("plan",), kind="workload"),
        handler=plan,
        query=PlanQuery,
        body=bytes,
        shape=PlanBody,
        takes=TAKES,
        result=PlanReport,
        refuses=("not_found",),
        lane=Lane.FORECAST,
    ),
]
