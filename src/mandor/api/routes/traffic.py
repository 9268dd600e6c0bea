"""Traffic: the state of a service on the nodes that balance it, and the way from an instance to a target."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import missing, read
from mandor.api.caller import Caller, lacks
from mandor.api.gate import Gate
from mandor.api.operation import Call, Operation
from mandor.api.parts import ApiParts
from mandor.api.rights import allowed_on
from mandor.api.routes.queries import Namespace
from mandor.api.sessions import END, receive_frame
from mandor.errors import Forbidden, Invalid, Unavailable
from mandor.model.instance import Instance
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.record import SessionSpec
from mandor.model.service import Service
from mandor.network.explain_plan import (
    EndpointState,
    RelatedObjects,
    TrafficExplanation,
    endpoint_states,
    explain_instance,
    explain_service,
)
from mandor.network.traffic_report import TrafficReport
from mandor.store.base import Filter

NODES_MOST = 16
"""Nodes that one request asks; the others are counted."""
ASKED_AT_ONCE = 4
ANSWER_SECONDS = 5.0


class TrafficQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE


class ServiceInstance(Struct, frozen=True, gc=False, omit_defaults=True):
    """One instance of a workload of the service."""

    instance: str
    node: str = ""
    address: str = ""
    """Address of the instance, or of its node if it has none."""
    reason: str = ""
    """Reason why it gets no traffic; empty: it gets traffic."""


class ServiceTraffic(Struct, frozen=True, gc=False):
    """The instances of a service, and the reports of the nodes that may send traffic to them."""

    instances: tuple[ServiceInstance, ...]
    nodes: tuple[TrafficReport, ...]
    unasked: int
    """Further nodes that were not asked."""


class ExplainTrafficQuery(Struct, frozen=True, forbid_unknown_fields=True):
    source: Annotated[str, Note(description="Instance that connects.", min_length=1, max_length=253)]
    target: Annotated[
        str,
        Note(
            description="`service/NAME`, `service/NAME.NAMESPACE` or `instance/NAME`, each with an optional `:PORT`.",
            min_length=1,
            max_length=600,
        ),
    ]
    namespace: Namespace = DEFAULT_NAMESPACE


async def service_traffic(call: Call[TrafficQuery, None]) -> ServiceTraffic:
    key = Key(Service.kind, call.query.namespace, call.path["name"])
    service = await _explained(call.parts, call.caller, key)
    assert isinstance(service, Service)
    listed = (await call.parts.store.list(Instance.kind, Filter(namespace=service.meta.namespace))).items
    instances = [each for each in listed if isinstance(each, Instance)]
    nodes = sorted({each.node for each in instances if _counts(each)})
    readable = [each for each in instances if allowed_on(call.caller.held, "get", each)]
    return ServiceTraffic(
        tuple(map(_shown, endpoint_states(service, readable))),
        await _ask_all(call.parts, call.caller, service.key, nodes[:NODES_MOST]),
        len(nodes[NODES_MOST:]),
    )


async def explain_traffic(call: Call[ExplainTrafficQuery, None]) -> TrafficExplanation:
    query, parts, caller = call.query, call.parts, call.caller
    source = await _explained(parts, caller, Key(Instance.kind, query.namespace, query.source))
    assert isinstance(source, Instance)
    kind, _, rest = query.target.partition("/")
    name, _, port = rest.partition(":")
    nodes = {
        each.meta.name: each
        for each in (await parts.store.list(Node.kind)).items
        if isinstance(each, Node) and allowed_on(caller.held, "get", each)
    }
    if kind == Instance.kind:
        target = await _explained(parts, caller, Key(Instance.kind, query.namespace, name))
        assert isinstance(target, Instance)
        return explain_instance(source, target, port, nodes)
    if kind != Service.kind:
        hint = "service/shop:http, service/shop.other-namespace or instance/web-0:8080"
        raise Invalid(f"{query.target[:80]!r} is not a service or an instance", hint=hint, parameter="target")
    name, _, namespace = name.partition(".")
    service = await _explained(parts, caller, Key(Service.kind, namespace or query.namespace, name))
    assert isinstance(service, Service)
    listed = (await parts.store.list(Instance.kind, Filter(namespace=service.meta.namespace))).items
    instances = [each for each in listed if isinstance(each, Instance) and allowed_on(caller.held, "get", each)]
    reports = await _ask_all(parts, caller, service.key, [source.node] if source.node else [])
    answered = [each for each in reports if not each.problem.startswith(NO_ANSWER)]
    return explain_service(source, service, port, RelatedObjects(instances, nodes, answered[0] if answered else None))


def _shown(state: EndpointState) -> ServiceInstance:
    status = state.instance.status
    address = status.address or status.host
    return ServiceInstance(state.instance.meta.name, state.instance.node, address, state.reason)


def _counts(instance: Instance) -> bool:
    return bool(instance.node) and not instance.phase.over


async def _explained(parts: ApiParts, caller: Caller, key: Key) -> Object:
    """Return an object that the caller may read and explain."""
    found = await read(parts.store, caller, key)
    if found is None:
        raise missing(key)
    if not allowed_on(caller.held, "explain", found):
        raise Forbidden(f"{caller.identity} ({caller.role}) may not explain {key}", hint=lacks("explain", key.kind))
    return found


NO_ANSWER = "no answer"


async def _ask_all(parts: ApiParts, caller: Caller, service: Key, nodes: Sequence[str]) -> tuple[TrafficReport, ...]:
    """Return the reports of these nodes; one that does not answer has a problem."""
    parts.streams.check(caller.identity)
    free = asyncio.Semaphore(ASKED_AT_ONCE)

    async def ask(node: str) -> TrafficReport:
        async with free:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await _ask(parts, caller, service, node)
            except TimeoutError:
                return TrafficReport(node, f"{NO_ANSWER} within {ANSWER_SECONDS:g} s")
            except Unavailable as error:
                return TrafficReport(node, f"{NO_ANSWER}: {error.message}")

    return tuple(await asyncio.gather(*map(ask, nodes)))


async def _ask(parts: ApiParts, caller: Caller, service: Key, node: str) -> TrafficReport:
    text = f"{service.namespace}/{service.name}"
    spec = SessionSpec(verb="traffic", node=node, server="", secret="", service=text)
    async with parts.sessions.dial(spec, caller, service.namespace) as agent:
        while (frame := await receive_frame(agent)) is not None:
            if frame[:1] == bytes([END]):
                try:
                    return msgspec.json.decode(frame[1:], type=TrafficReport)
                except msgspec.MsgspecError as error:
                    raise Unavailable(f"the agent of {node} sent no report") from error
    raise Unavailable(f"the agent of {node} closed the session")


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/services/{name}/traffic",
        name="service_traffic",
        summary="Ask the nodes that have instances of the namespace for the endpoints and counters of a service",
        tag="networking",
        gate=Gate(verbs=("explain",)),
        handler=service_traffic,
        query=TrafficQuery,
        result=ServiceTraffic,
        refuses=("not_found", "too_many"),
    ),
    Operation(
        method="GET",
        path="/v1/explain/traffic",
        name="explain_traffic",
        summary="Explain step by step why an instance can or cannot reach a service or another instance",
        tag="networking",
        gate=Gate(verbs=("explain",)),
        handler=explain_traffic,
        query=ExplainTrafficQuery,
        result=TrafficExplanation,
        refuses=("not_found", "too_many"),
    ),
]
