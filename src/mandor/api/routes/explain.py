"""Explain: the reasons why an instance has no node, or why it has its node."""

from collections.abc import Callable
from typing import Annotated

import msgspec
from msgspec import Meta as Note
from msgspec import Struct

from mandor.api.access import read
from mandor.api.caller import lacks
from mandor.api.gate import Gate
from mandor.api.http.fair_queue import Lane
from mandor.api.operation import Call, Operation, Text
from mandor.api.pools import machines_underway
from mandor.api.rights import allowed_on
from mandor.api.routes.queries import Namespace
from mandor.api.scheduling import ForecastWorkspace
from mandor.errors import Forbidden
from mandor.model.codec import encode
from mandor.model.decision import DecisionRecord, DecisionSpec
from mandor.model.instance import Instance
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Key, Object
from mandor.model.pool import NodePool
from mandor.model.workload import Workload
from mandor.placement.explainer import Explainer, Explanation, WorkloadExplanation
from mandor.store.base import Filter


class ExplainQuery(Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace = DEFAULT_NAMESPACE
    nodes: Annotated[bool, Note(description="Include the verdict on each node.")] = False


async def explain_instance(call: Call[ExplainQuery, None]) -> Text:
    found = await _readable(call, Instance)
    kept = await call.parts.store.get(Key(DecisionRecord.kind, found.meta.namespace, found.meta.name))
    decision = kept.spec if isinstance(kept, DecisionRecord) else None

    def answer(workspace: ForecastWorkspace) -> bytes:
        explainer = _explainer(workspace, call)
        assert isinstance(found, Instance)
        return encode(_with_machines(explainer.instance(found, decision, nodes=call.query.nodes), machines))

    machines = await _machines(call)
    return await _answered(call, answer)


async def explain_workload(call: Call[ExplainQuery, None]) -> Text:
    found = await _readable(call, Workload)
    decisions = (await call.parts.store.list(DecisionRecord.kind, Filter(namespace=found.meta.namespace))).items
    kept: dict[str, DecisionSpec] = {
        each.meta.name: each.spec
        for each in decisions
        if isinstance(each, DecisionRecord) and each.spec.workload == found.meta.name
    }

    def answer(workspace: ForecastWorkspace) -> bytes:
        explainer = _explainer(workspace, call)
        assert isinstance(found, Workload)
        made = explainer.workload(found, kept, nodes=call.query.nodes)
        each = tuple(_with_machines(instance, machines) for instance in made.instances)
        return encode(msgspec.structs.replace(made, instances=each))

    machines = await _machines(call)
    return await _answered(call, answer)


async def _machines(call: Call[ExplainQuery, None]) -> tuple[str, ...]:
    """Return sentences about the machines of the pools that the caller may read."""
    pools = (await call.parts.store.list(NodePool.kind)).items
    return machines_underway(
        [each for each in pools if allowed_on(call.caller.held, "get", each)], call.parts.clock.now()
    )


def _with_machines(explanation: Explanation, machines: tuple[str, ...]) -> Explanation:
    return explanation if explanation.node else msgspec.structs.replace(explanation, machines=machines)


async def _readable(call: Call[ExplainQuery, None], kind: type[Object]) -> Object:
    key = Key(kind.kind, call.query.namespace, call.path["name"])
    found = await read(call.parts.store, call.caller, key)
    if not allowed_on(call.caller.held, "explain", found):
        raise Forbidden(
            f"{call.caller.identity} ({call.caller.role}) may not explain {key}",
            hint=lacks("explain", kind.kind),
        )
    return found


async def _answered(call: Call[ExplainQuery, None], answer: Callable[[ForecastWorkspace], bytes]) -> Text:
    return Text(await call.parts.forecasts.run(call.caller.identity, answer))


def _explainer(workspace: ForecastWorkspace, call: Call[ExplainQuery, None]) -> Explainer:
    model = workspace.model()
    return Explainer(
        model, workspace.profiles(model), consult=workspace.consult, watch=workspace.guard, sees=call.caller.sees
    )


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/explain/instances/{name}",
        name="explain_instance",
        summary="Explain why an instance has no node, with the smallest change that would help; or why it has its node",
        tag="placement",
        gate=Gate(verbs=("explain",)),
        handler=explain_instance,
        query=ExplainQuery,
        result=Explanation,
        refuses=("not_found",),
        lane=Lane.FORECAST,
    ),
    Operation(
        method="GET",
        path="/v1/explain/workloads/{name}",
        name="explain_workload",
        summary="Explain where the instances of a workload are placed, and why",
        tag="placement",
        gate=Gate(verbs=("explain",)),
        handler=explain_workload,
        query=ExplainQuery,
        result=WorkloadExplanation,
        refuses=("not_found",),
        lane=Lane.FORECAST,
    ),
]
