"""HTTPExtender: Kubernetes' scheduler extenders, which filter and prioritize nodes over HTTP."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as part
from typing import Annotated, Any

import numpy as np
from msgspec import Meta as Bounds
from msgspec import Struct, field
from msgspec.structs import force_setattr

from mandor.lib.quantity import Seconds
from mandor.model.resources import resource_name
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.occupancy import PlacedInstance
from mandor.placement.framework.points import (
    BindPlugin,
    ConsultPlugin,
    FilterPlugin,
    HttpCall,
    HttpReply,
    Offer,
    ScorePlugin,
    Tls,
    tally,
)
from mandor.placement.framework.request import CPU, MEMORY, PlacementRequest
from mandor.placement.framework.snapshot import Snapshot

EXTENDER_MOST = 10
"""Highest score of an extender; it is multiplied by ten."""


class Extender(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """An extender as in KubeSchedulerConfiguration."""

    url_prefix: str
    filter_verb: str = ""
    prioritize_verb: str = ""
    weight: Annotated[int, Bounds(ge=0, le=1_000_000)] = 0
    http_timeout: Seconds = Seconds(5)
    node_cache_capable: bool = False
    """Whether the extender caches nodes and needs only their names."""
    ignorable: bool = False
    """Whether a failed call is ignored."""
    managed_resources: tuple["ManagedResource", ...] = ()
    """Resources that the extender manages: it is called only for instances that request one. Empty: for all."""
    bind_verb: str = ""
    """Called before the placement is written; the extender may refuse."""
    preempt_verb: str = ""
    """Called before instances are preempted; the extender may refuse nodes or name other victims."""
    enable_https: bool = field(default=False, name="enableHTTPS")
    """The same as `https://` in the URL."""
    tls_config: "ExtenderTls | None" = None

    def __post_init__(self) -> None:
        if not self.url_prefix.startswith(("http://", "https://")):
            raise ValueError(f"urlPrefix {self.url_prefix!r} is not a URL; it begins with http:// or https://")
        if self.enable_https and not self.url_prefix.startswith("https://"):
            raise ValueError(f"enableHTTPS, and urlPrefix is {self.url_prefix!r}; write https://")
        if self.tls_config is not None and not self.url_prefix.startswith("https://"):
            raise ValueError("tlsConfig belongs to an urlPrefix that begins with https://")
        if not (self.filter_verb or self.prioritize_verb or self.bind_verb or self.preempt_verb):
            raise ValueError("an extender has a filterVerb, prioritizeVerb, bindVerb, preemptVerb or several of them")
        if self.prioritize_verb and self.weight < 1:
            raise ValueError("an extender with a prioritizeVerb has a weight of 1 or more")
        if not 0 < self.http_timeout <= 60:
            raise ValueError(f"httpTimeout {self.http_timeout} is not between 0 and 60 seconds")


class ManagedResource(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    ignored_here: bool = field(default=False, name="ignoredByScheduler")
    """Whether `NodeResourcesFit` ignores the resource."""

    def __post_init__(self) -> None:
        force_setattr(self, "name", resource_name(self.name, "name"))


class ExtenderTls(Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    insecure: bool = False
    server_name: str = ""
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""

    def __post_init__(self) -> None:
        if self.insecure:
            raise ValueError("insecure is not supported: give the server's CA as caFile")
        if bool(self.cert_file) != bool(self.key_file):
            raise ValueError("certFile and keyFile must be set together")

    @property
    def tls(self) -> Tls:
        return Tls(self.ca_file, self.cert_file, self.key_file, self.server_name)


@dataclass(frozen=True, slots=True)
class _Answer:
    fits: frozenset[str] | None = None
    """Names of the nodes that pass; None: all."""
    why: Mapping[str, str] = part(default_factory=dict)
    scores: Mapping[str, int] = part(default_factory=dict)


class HTTPExtender(ConsultPlugin, FilterPlugin, ScorePlugin, BindPlugin):
    """One plugin for each extender of the configuration; the name contains the URL."""

    name = "HTTPExtender"
    Args = Extender

    def __init__(self, args: Extender, handle: Handle = DETACHED) -> None:
        self.extender = args
        self._handle = handle
        self.name = f"HTTPExtender({args.url_prefix})"  # type: ignore[misc]
        self._said: Mapping[str, str] = {}
        """Reasons of the refused nodes in this cycle."""

    def consult(
        self, request: PlacementRequest, nodes: Snapshot, feasible: Mask
    ) -> Generator[HttpCall, HttpReply, object]:
        if not self._concerned(request):
            return _Answer()
        slots = [int(slot) for slot in feasible.nonzero()[0]]
        described = {nodes.nodes[slot].meta.name: self._node(nodes, slot) for slot in slots}
        answer = _Answer()
        if self.extender.filter_verb:
            reply = yield self._question(self.extender.filter_verb, request, described)
            if self._missing(reply):
                return _Answer()
            answer = self._filtered(reply.body, described)
            described = {name: each for name, each in described.items() if name in (answer.fits or ())}
        if self.extender.prioritize_verb and described:
            reply = yield self._question(self.extender.prioritize_verb, request, described)
            if not self._missing(reply):
                answer = _Answer(answer.fits, answer.why, self._scored(reply.body))
        return answer

    @property
    def agrees_to_victims(self) -> bool:
        return bool(self.extender.preempt_verb)

    def leaves_none(self, answer: object) -> bool:
        return isinstance(answer, _Answer) and answer.fits == frozenset()

    def agreeing(self, answer: object, offers: tuple[Offer, ...]) -> object:
        if not isinstance(answer, _Answer) or answer.fits is None:
            return answer
        return replace(answer, fits=answer.fits | {each.node for each in offers})

    def consult_victims(
        self, request: PlacementRequest, offers: tuple[Offer, ...]
    ) -> Generator[HttpCall, HttpReply, tuple[Offer, ...]]:
        if not self._concerned(request):
            return offers
        reply = yield self._asked(self.extender.preempt_verb, {"Pod": _pod(request), **self._victims(offers)})
        return offers if self._missing(reply) else tuple(self._agreed(reply.body, offers))

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        answer = state.find(self.name, _Answer)
        if answer is None or answer.fits is None:
            return np.ones(len(nodes), dtype=np.bool_)
        fits = np.zeros(len(nodes), dtype=np.bool_)
        fits[[nodes.slots[name] for name in answer.fits if name in nodes.slots]] = True
        self._said = answer.why
        return fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return tally(self._said.get(nodes.nodes[int(slot)].meta.name, "refused") for slot in refused.nonzero()[0])

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        scores = np.zeros(len(nodes), dtype=np.int64)
        answer = state.find(self.name, _Answer)
        for name, score in answer.scores.items() if answer is not None else ():
            if name in nodes.slots:
                scores[nodes.slots[name]] = score
        return scores

    async def bind(self, state: CycleState, request: PlacementRequest, node: str) -> bool:
        """Call the extender, which may refuse; Mandor writes the placement itself."""
        if not self._concerned(request):
            return False
        body = {"PodName": request.key.name, "PodNamespace": request.key.namespace, "PodUID": "", "Node": node}
        reply = await self._handle.inquire(self._asked(self.extender.bind_verb, body))
        if self._missing(reply):
            return False
        error = _field(reply.body, "error")
        if error:
            raise RuntimeError(f"refused the bind: {error}")
        await self._handle.bind(request, node)
        return True

    def _concerned(self, request: PlacementRequest) -> bool:
        managed = {each.name for each in self.extender.managed_resources}
        return not managed or any(resource in managed for resource, _ in request.shape.wanted)

    # Protocol.

    def _asked(self, verb: str, body: Mapping[str, Any]) -> HttpCall:
        url = f"{self.extender.url_prefix.rstrip('/')}/{verb.lstrip('/')}"
        tls = self.extender.tls_config
        return HttpCall(url, body, float(self.extender.http_timeout), tls.tls if tls is not None else Tls())

    def _question(self, verb: str, request: PlacementRequest, described: Mapping[str, Any]) -> HttpCall:
        nodes: dict[str, Any] = (
            {"NodeNames": list(described)}
            if self.extender.node_cache_capable
            else {"Nodes": {"apiVersion": "v1", "kind": "NodeList", "items": list(described.values())}}
        )
        return self._asked(verb, {"Pod": _pod(request), **nodes})

    def _missing(self, reply: HttpReply) -> bool:
        """Return True if the call failed and the extender is ignorable."""
        if not reply.problem:
            return False
        if self.extender.ignorable:
            return True
        raise RuntimeError(reply.problem)

    def _filtered(self, body: Any, described: Mapping[str, Any]) -> _Answer:
        if not isinstance(body, dict):
            raise TypeError(f"the filter returned {type(body).__name__}, not an object")
        error = _field(body, "error")
        if error:
            if self.extender.ignorable:
                return _Answer()
            raise RuntimeError(f"the filter returned an error: {error}")
        names = _field(body, "nodenames")
        if names is None:
            items = (_field(body, "nodes") or {}).get("items") or ()
            names = [each["metadata"]["name"] for each in items]
        failed = {**(_field(body, "failedNodes") or {}), **(_field(body, "failedAndUnresolvableNodes") or {})}
        return _Answer(frozenset(names) & described.keys(), {str(key): str(text) for key, text in failed.items()})

    def _scored(self, body: Any) -> Mapping[str, int]:
        if not isinstance(body, Sequence) or isinstance(body, str):
            raise TypeError(f"prioritize returned {type(body).__name__}, not a list")
        scores: dict[str, int] = {}
        for each in body:
            host, score = _field(each, "host"), _field(each, "score")
            if not isinstance(score, int) or not 0 <= score <= EXTENDER_MOST:
                raise ValueError(f"prioritize gave {score!r} to {host}; scores are 0..{EXTENDER_MOST}")
            scores[str(host)] = score * (100 // EXTENDER_MOST)
        return scores

    def _victims(self, offers: Sequence[Offer]) -> dict[str, Any]:
        if self.extender.node_cache_capable:
            named: dict[str, Any] = {
                each.node: {
                    "Pods": [{"UID": _uid(victim)} for victim in each.victims],
                    "NumPDBViolations": each.violations,
                }
                for each in offers
            }
            return {"NodeNameToMetaVictims": named}
        full = {
            each.node: {
                "Pods": [_victim(victim, each.node) for victim in each.victims],
                "NumPDBViolations": each.violations,
            }
            for each in offers
        }
        return {"NodeNameToVictims": full}

    def _agreed(self, body: Any, offers: Sequence[Offer]) -> Iterator[Offer]:
        by_node = {each.node: each for each in offers}
        for node, victims in (_field(body, "nodeNameToMetaVictims") or {}).items():
            offer, pods = by_node.get(node), _field(victims, "pods") if victims else None
            if offer is None:
                raise ValueError(f"preempt returned the node {node}, which was not in the request")
            if not pods:
                if self.extender.ignorable:
                    continue
                raise ValueError(f"preempt returned no victims for {node}")
            there = {_uid(each): each for each in (*offer.victims, *offer.others)}
            named = [_field(each, "uid") for each in pods]
            missing = [uid for uid in named if uid not in there]
            if missing:
                raise ValueError(f"preempt returned {missing[0]} on {node}, which is not there or may not be preempted")
            goes = tuple(there[uid] for uid in named)
            stays = tuple(each for each in there.values() if each not in goes)
            yield Offer(node, goes, int(_field(victims, "numPDBViolations") or 0), stays)

    def _node(self, nodes: Snapshot, slot: int) -> dict[str, Any]:
        node = nodes.nodes[slot]
        if self.extender.node_cache_capable:
            return {}
        amounts = {name: int(nodes.allocatable[nodes.rows[name], slot]) for name, _ in nodes.own_resources(slot)}
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": node.meta.name, "labels": dict(node.meta.labels)},
            "spec": {
                "unschedulable": node.closed,
                "taints": [{"key": each.key, "value": each.value, "effect": each.effect} for each in node.taints],
            },
            "status": {"allocatable": _quantities(amounts)},
        }


def _pod(request: PlacementRequest) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": request.key.name, "namespace": request.key.namespace},
        "spec": {
            "schedulerName": request.profile,
            "priority": request.priority,
            "containers": [{"name": "main", "resources": {"requests": _quantities(dict(request.shape.wanted))}}],
        },
    }


def _uid(placed_instance: PlacedInstance) -> str:
    """Return an id that is unique among existing instances; extenders send it back."""
    return f"{placed_instance.key.namespace}/{placed_instance.key.name}"


def _victim(placed_instance: PlacedInstance, node: str) -> dict[str, Any]:
    requests = _quantities(dict(placed_instance.shape.wanted))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": placed_instance.key.name,
            "namespace": placed_instance.key.namespace,
            "uid": _uid(placed_instance),
            "labels": dict(placed_instance.identity.labels),
        },
        "spec": {
            "nodeName": node,
            "priority": placed_instance.priority,
            "containers": [{"name": "main", "resources": {"requests": requests}}],
        },
    }


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    shown = {CPU: "m", MEMORY: ""}
    return {
        ("ephemeral-storage" if name == "disk" else name): f"{each}{shown.get(name, '')}"
        for name, each in amounts.items()
    }


def _field(body: Any, name: str) -> Any:
    """Return a field by name in any case, as Go's JSON decoder does; extenders use both."""
    if not isinstance(body, dict):
        raise TypeError(f"{name} is asked of {type(body).__name__}, not of an object")
    return next((value for key, value in body.items() if key.lower() == name.lower()), None)
