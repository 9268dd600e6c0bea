"""Simulate: runs a change to the current cluster, or a scenario, on a virtual clock; nothing is written."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta as Note
from msgspec import Struct
from starlette.types import Receive, Send

from mandor.api.apply import plan_apply
from mandor.api.foreign import ImportReport, text_in
from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import NDJSON, Call, Operation, Stream
from mandor.api.routes.apply import TAKES, ManifestFiles, files_in, read_files
from mandor.api.routes.queries import Format, Namespace, Strict
from mandor.api.simulation import KINDS, scenario_in, scenario_of
from mandor.api.watch import START
from mandor.api.wire import error_line
from mandor.api.writing import Author
from mandor.errors import Forbidden, MandorError, TooLarge, Unavailable
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Object

TEXT_MOST = 256 * 1024
OBJECTS_MOST = 2000
"""Objects of a simulated cluster; the command `mandor simulate` has no such limit."""
SEEDS_MOST = 20
MINUTES_MOST = 24 * 60


class SimulateQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    format: Format = ""
    strict: Strict = False
    seeds: Annotated[int, Note(description="Number of runs, each with another random order.", ge=1, le=SEEDS_MOST)] = 3
    minutes: Annotated[
        int,
        Note(description="Simulated minutes after the change; ignored for a scenario.", ge=1, le=MINUTES_MOST),
    ] = 10


class Simulation(Struct, frozen=True, omit_defaults=True):
    """The only line of the response; or a line with `error`, a problem."""

    report: Any
    """The report, as `mandor simulate -o json` prints it."""
    page: str
    """The report as a page, as `mandor simulate --html` writes it."""
    scenario: str
    imported: ImportReport | None = None
    """Report of the conversion, if the files were those of another tool."""


async def simulate(call: Call[SimulateQuery, bytes]) -> Stream:
    parts, query = call.parts, call.query
    call.caller.require_somewhere("simulate", "workload", what="simulate")
    if parts.simulate is None:
        raise Unavailable("this server cannot simulate")
    parts.streams.check(call.caller.identity)
    scenario, imported = await _scenario(call)
    if len(scenario) > TEXT_MOST:
        hint = "the command `mandor simulate` has no such limit"
        raise TooLarge(f"the scenario has {len(scenario)} characters; at most {TEXT_MOST} are allowed", hint=hint)
    run = parts.simulate

    async def answer(receive: Receive, send: Send) -> None:
        async def work() -> None:
            await send(START)
            try:
                async with parts.request_admission.slot(Lane.SIMULATION, call.caller):
                    report, page = await run(scenario, query.seeds)
                plain = msgspec.Raw(msgspec.json.format(report, indent=-1))  # on one line
                line = msgspec.json.encode(Simulation(plain, page, scenario, imported)) + b"\n"
            except MandorError as error:
                line = error_line(error)
            await send({"type": "http.response.body", "body": line, "more_body": True})

        # A client that disconnects cancels the simulation.
        await parts.streams.run(receive, work, call.caller)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return Stream(answer)


async def _scenario(call: Call[SimulateQuery, bytes]) -> tuple[str, ImportReport | None]:
    files = files_in(call.body, call.content_type, call.parts.settings.manifest_bytes_most)
    texts = [each if isinstance(each, str) else text_in(each, name) for name, each in files]
    if len(texts) == 1 and await asyncio.to_thread(scenario_in, texts[0]):
        return texts[0], None
    if not call.caller.everywhere or not call.caller.may("simulate", "cluster"):
        hint = "send a scenario that defines its own nodes"
        raise Forbidden(f"{call.caller.identity} may not read the whole cluster, which would be simulated", hint=hint)
    read = await read_files(call, files, check_engines=True)
    applied = await plan_apply(call.parts, Author(call.caller, call.address, "simulate"), read.documents, forecast=True)
    cluster = await _cluster(call)
    return await asyncio.to_thread(scenario_of, cluster, applied.values, seconds=60 * call.query.minutes), read.imported


async def _cluster(call: Call[SimulateQuery, bytes]) -> Sequence[Object]:
    found: list[Object] = []
    for kind in KINDS:
        found += (await call.parts.store.list(kind)).items
        if len(found) > OBJECTS_MOST:
            hint = "the command `mandor simulate` has no such limit"
            raise TooLarge(f"the cluster has more than {OBJECTS_MOST} nodes, workloads and other objects", hint=hint)
    return found


OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/simulate",
        name="simulate",
        summary="Simulate a change to the current cluster, or a scenario; closing the connection cancels it",
        tag="placement",
        gate=Gate(verbs=("simulate",), kind="workload"),
        handler=simulate,
        query=SimulateQuery,
        body=bytes,
        shape=ManifestFiles,
        takes=TAKES,
        result=Simulation,
        gives=NDJSON,
        refuses=("too_many",),
        lane=Lane.FORECAST,
    ),
]
