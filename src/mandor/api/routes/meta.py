"""Health, version, features, schema and metrics of the server."""

import asyncio
from typing import Any

from msgspec import Struct

from mandor import __version__
from mandor.api.caller import PARTS
from mandor.api.cluster import read_cluster
from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation, Text
from mandor.errors import Unavailable
from mandor.lib.metrics import CONTENT_TYPE
from mandor.model.features import FEATURES
from mandor.model.record import ClusterSpec


class Health(Struct, frozen=True, omit_defaults=True):
    status: str
    notes: tuple[str, ...] = ()
    """Deviations from the configuration, and current failures."""


class CallerAbout(Struct, frozen=True):
    """The caller of the request."""

    identity: str
    role: str
    namespaces: tuple[str, ...]
    """Namespaces of the role; `*`: all."""


class About(Struct, frozen=True):
    version: str
    features: tuple[str, ...]
    """Names of the features that this server supports."""
    everywhere: tuple[str, ...]
    """Names of the features that all servers support; only these are used in stored objects."""
    cluster: ClusterSpec
    you: CallerAbout


async def healthz(call: Call[None, None]) -> Health:
    return Health("ok")


async def readyz(call: Call[None, None]) -> Health:
    """Return whether the store answers and the server is not stopping."""
    if call.parts.streams.closing:
        raise Unavailable("the server is stopping")
    await call.parts.store.check_available()
    await read_cluster(call.parts.store)
    return Health("ready", (*call.parts.notes, *call.parts.troubles()))


async def about(call: Call[None, None]) -> About:
    caller = call.caller
    you = CallerAbout(caller.identity, caller.role, tuple(sorted(caller.namespaces)))
    everywhere = tuple(sorted(call.parts.everywhere()))
    return About(__version__, FEATURES, everywhere, await read_cluster(call.parts.store), you)


async def schema(call: Call[None, None]) -> dict[str, Any]:
    from mandor.model.schema import manifest_schema

    return await asyncio.to_thread(manifest_schema)


async def metrics(call: Call[None, None]) -> Text:
    call.caller.require("metrics", "cluster", what="read metrics")
    return Text(await call.parts.metrics(), CONTENT_TYPE)


OPERATIONS = [
    Operation(
        method="GET",
        path="/metrics",
        name="metrics",
        summary="Read the metrics of the server and the cluster, in Prometheus' format",
        tag="server",
        gate=Gate(verbs=("metrics",), kind="cluster"),
        handler=metrics,
        result=str,
        gives="text/plain",
        lane=Lane.BULK,
    ),
    Operation(
        method="GET",
        path="/healthz",
        name="healthz",
        summary="Check whether the server is alive",
        tag="server",
        handler=healthz,
        result=Health,
        open=True,
        lane=Lane.HEARTBEAT,
    ),
    Operation(
        method="GET",
        path="/readyz",
        name="readyz",
        summary="Check whether the server is ready",
        tag="server",
        handler=readyz,
        result=Health,
        open=True,
        lane=Lane.HEARTBEAT,
    ),
    Operation(
        method="GET",
        path="/v1",
        name="about",
        summary="Read version, features and the id of the cluster",
        tag="server",
        gate=Gate(PARTS),
        handler=about,
        result=About,
    ),
    Operation(
        method="GET",
        path="/v1/schema",
        name="schema",
        summary="Read the JSON Schema of manifests, for editors",
        tag="server",
        handler=schema,
        result=dict[str, Any],
    ),
]
