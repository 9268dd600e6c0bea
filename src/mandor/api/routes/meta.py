"""What the server says about itself: health, version, schema, documentation."""

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
    """What is not as it was configured."""


class You(Struct, frozen=True):
    """Who asks, and what they may do."""

    identity: str
    role: str
    namespaces: tuple[str, ...]
    """`*`: all."""


class About(Struct, frozen=True):
    version: str
    features: tuple[str, ...]
    """What this server can do, by name."""
    everywhere: tuple[str, ...]
    """What all servers of the cluster can do: only that is written."""
    cluster: ClusterSpec
    you: You


async def healthz(call: Call[None, None]) -> Health:
    return Health("ok")


async def readyz(call: Call[None, None]) -> Health:
    """Ready: the store answers, and the server is not stopping."""
    if call.parts.streams.closing:
        raise Unavailable("the server is stopping")
    await read_cluster(call.parts.store)
    return Health("ready", (*call.parts.notes, *call.parts.troubles()))


async def about(call: Call[None, None]) -> About:
    caller = call.caller
    you = You(caller.identity, caller.role, tuple(sorted(caller.namespaces)))
    everywhere = tuple(sorted(call.parts.everywhere()))
    return About(__version__, FEATURES, everywhere, await read_cluster(call.parts.store), you)


async def schema(call: Call[None, None]) -> dict[str, Any]:
    from mandor.model.schema import manifest_schema

    return await asyncio.to_thread(manifest_schema)


async def metrics(call: Call[None, None]) -> Text:
    call.caller.require("metrics", "cluster", what="read what the cluster counts")
    return Text(await call.parts.metrics(), CONTENT_TYPE)


OPERATIONS = [
    Operation(
        method="GET",
        path="/metrics",
        name="metrics",
        summary="What the server counts, and the cluster in numbers, for Prometheus",
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
        summary="Whether the server lives",
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
        summary="Whether the server can serve",
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
        summary="Version, features, and which cluster this is",
        tag="server",
        gate=Gate(PARTS),
        handler=about,
        result=About,
    ),
    Operation(
        method="GET",
        path="/v1/schema",
        name="schema",
        summary="The JSON Schema of manifests, for editors",
        tag="server",
        handler=schema,
        result=dict[str, Any],
    ),
]
