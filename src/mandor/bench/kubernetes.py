"""Kubernetes' Node and Pod templates as nodes and groups: small, and a refusal of everything else by its name."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mandor.errors import Invalid
from mandor.lib.quantity import Cpu, Seconds, Size
from mandor.lib.yaml12 import Map
from mandor.model.meta import Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus, Taint
from mandor.model.placement import Apart, Near, Placement, Spread, Toleration, Where
from mandor.model.resources import Device, Limits, Resources, TaskResources, device_amounts
from mandor.model.task import Stop, Task
from mandor.model.workload import Group, Port

FACTS = {
    "kubernetes.io/hostname": "node",
    "metadata.name": "node",
    "topology.kubernetes.io/zone": "zone",
    "topology.kubernetes.io/region": "region",
}
_AMOUNTS: dict[str, Callable[[str], int]] = {"cpu": Cpu.parse, "memory": Size.parse, "ephemeral-storage": Size.parse}
_ENGINES = {"docker": Capabilities(images=True)}
_ALL = "*"
_POLICIES = {"nodeaffinitypolicy": "Honor", "nodetaintspolicy": "Ignore"}
"""What the spreading of Kubernetes can be told about nodes that are closed to a pod, and what it is here."""
PROFILES = {"default-scheduler": "default"}
_PRIORITY_KEPT = 100_000
"""Kubernetes' priorities are larger than ours: those above this are brought closer together, in their order."""
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Refuse = Callable[[str, str], None]
"""Told of a key that cannot be mapped, and why; it raises, or it notes that and the key is left out."""
FindNamespaces = Callable[[Mapping[str, str]], tuple[str, ...]]
"""The namespaces that have these labels."""


@dataclass(frozen=True, slots=True)
class Pod:
    """What a pod template comes to; its copies are instances of one workload."""

    group: Group
    labels: dict[str, str]
    priority: int
    gates: tuple[str, ...]
    profile: str
    name: str | None
    """Absent: one is generated."""
    stem: str
    finalizers: bool
    """Deleting it only marks it: somebody else must let go of it first."""
    pod_group: str | None
    """The PodGroup that it belongs to."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    name: str
    least: int | None
    """So many of its pods get their nodes together, or none does; absent: each for itself."""


class Reader:
    """Reads one template. What has no counterpart is told by its path, and left out if that is allowed."""

    def __init__(
        self,
        refuse: Refuse,
        namespaces: FindNamespaces = lambda labels: (),
        priorities: Mapping[str, int] | None = None,
    ) -> None:
        self._refuse = refuse
        self._namespaces = namespaces
        self._priorities = priorities or {}

    # Nodes.

    def node(self, source: Map, name: str, labels: Mapping[str, str]) -> Node:
        self._only(source, "", {"apiVersion", "kind", "metadata", "spec", "status"})
        spec, status, meta = _map(source, "spec"), _map(source, "status"), _map(source, "metadata")
        self._only(meta, "metadata", {"name", "generateName", "labels", "annotations"})
        self._only(spec, "spec", {"taints", "unschedulable"})
        self._only(status, "status", {"capacity", "allocatable", "conditions", "phase", "images"})
        amounts = {**_map(status, "capacity"), **_map(status, "allocatable")}
        closed = bool(spec.get("unschedulable")) or str(amounts.pop("pods", "")) == "0"
        ready = any(
            each.get("type") == "Ready" and each.get("status") == "True" for each in _list(status, "conditions")
        )
        return Node(
            meta=Meta(name=name, labels=renamed({**_map(meta, "labels"), **labels})),
            spec=NodeSpec(cordoned=closed, taints=tuple(self._taint(each) for each in _list(spec, "taints"))),
            status=NodeStatus(
                phase=NodePhase.READY if ready else NodePhase.UNKNOWN,
                capacity=self._capacity(amounts),
                engines=_ENGINES,
                images={
                    name: int(image.get("sizeBytes", 0))
                    for image in _list(status, "images")
                    for name in _list(image, "names")
                },
            ),
        )

    def _capacity(self, amounts: Mapping[str, Any]) -> Resources:
        known = {name: int(_AMOUNTS[name](str(amounts[name]))) for name in _AMOUNTS if name in amounts}
        devices: dict[str, int] = {}
        for name, count in amounts.items():
            if name not in _AMOUNTS:
                devices |= device_amounts(name, int(count))
        return Resources(
            known.get("cpu", 0),
            known.get("memory", 0),
            known.get("ephemeral-storage", 0),
            dict(sorted(devices.items())),
        )

    def _taint(self, source: Map) -> Taint:
        self._only(source, "spec.taints", {"key", "value", "effect"})
        return Taint(source["key"], str(source.get("value", "")), source.get("effect", "NoSchedule"))

    # Pods.

    def pod(self, source: Map) -> Pod:
        self._only(source, "", {"apiVersion", "kind", "metadata", "spec"})
        meta, spec = _map(source, "metadata"), _map(source, "spec")
        self._only(meta, "metadata", {"name", "generateName", "labels", "annotations", "finalizers"})
        self._only(
            spec,
            "spec",
            {"containers", "initContainers", "affinity", "nodeSelector", "tolerations", "topologySpreadConstraints"}
            | {"priority", "priorityClassName", "schedulingGates", "schedulerName", "terminationGracePeriodSeconds"}
            | {"schedulingGroup"},
        )
        grace = Seconds(float(spec.get("terminationGracePeriodSeconds", 30)))
        ports: dict[str, Port] = {}
        tasks = self._tasks(spec, "initContainers", "init", grace, ports)
        tasks |= self._tasks(spec, "containers", "main", grace, ports)
        stem = str(meta.get("generateName", "pod-"))
        return Pod(
            group=Group(tasks=tasks, ports=ports, placement=self._placement(spec)),
            labels=renamed(_map(meta, "labels")),
            priority=closer(self._priority(spec)),
            gates=tuple(_plain(each["name"]) for each in _list(spec, "schedulingGates")),
            profile=PROFILES.get(spec.get("schedulerName", "default"), spec.get("schedulerName", "default")),
            name=meta.get("name"),
            stem=stem,
            finalizers=bool(meta.get("finalizers")),
            pod_group=_map(spec, "schedulingGroup").get("podGroupName"),
        )

    def pod_group(self, source: Map) -> PodGroup:
        self._only(source, "", {"apiVersion", "kind", "metadata", "spec"})
        spec = _map(source, "spec")
        self._only(spec, "spec", {"schedulingPolicy", "priority"})
        policy = _map(spec, "schedulingPolicy")
        self._only(policy, "spec.schedulingPolicy", {"basic", "gang"})
        gang = _map(policy, "gang")
        self._only(gang, "spec.schedulingPolicy.gang", {"minCount"})
        return PodGroup(_map(source, "metadata")["name"], int(gang["minCount"]) if gang else None)

    def _priority(self, spec: Map) -> int:
        named = spec.get("priorityClassName")
        if named is None or "priority" in spec:
            return int(spec.get("priority", 0))
        if named not in self._priorities:
            self._refuse("spec.priorityClassName", f"no operation has created the PriorityClass {named}")
        return self._priorities.get(named, 0)

    def _tasks(self, spec: Map, key: str, role: Any, grace: Seconds, ports: dict[str, Port]) -> dict[str, Task]:
        tasks = {}
        for source in _list(spec, key):
            self._only(source, f"spec.{key}", {"name", "image", "ports", "resources", "command", "args"})
            for port in _list(source, "ports"):
                self._only(port, f"spec.{key}.ports", {"containerPort", "hostPort", "protocol", "name"})
                protocol = str(port.get("protocol", "TCP")).lower()
                ports[f"port-{len(ports)}"] = Port(port["containerPort"], port.get("hostPort"), protocol)  # type: ignore[arg-type]
            tasks[source["name"]] = Task(
                role=role,
                image=source.get("image", "pause"),
                command=tuple(_list(source, "command")),
                args=tuple(_list(source, "args")),
                resources=self._resources(_map(source, "resources")),
                stop=Stop(grace=grace),
            )
        return tasks

    def _resources(self, source: Map) -> TaskResources:
        limits = _map(source, "limits")
        asked = {**limits, **_map(source, "requests")}
        return TaskResources(
            cpu=Cpu.parse(str(asked.get("cpu", 0))),
            memory=Size.parse(str(asked.get("memory", 0))),
            disk=Size.parse(str(asked.get("ephemeral-storage", 0))),
            devices=tuple(_device(name, int(count)) for name, count in asked.items() if name not in _AMOUNTS),
            limits=Limits(
                cpu=Cpu.parse(str(limits["cpu"])) if "cpu" in limits else None,
                memory=Size.parse(str(limits["memory"])) if "memory" in limits else None,
            ),
        )

    # Where it may go.

    def _placement(self, spec: Map) -> Placement:
        affinity = _map(spec, "affinity")
        self._only(affinity, "spec.affinity", {"nodeAffinity", "podAffinity", "podAntiAffinity"})
        where = [Where(rule=f"{_fact(key)} == {value}") for key, value in _map(spec, "nodeSelector").items()]
        where += self._node_rules(_map(affinity, "nodeAffinity"))
        return Placement(
            where=tuple(where),
            tolerate=tuple(self._tolerations(spec)),
            near=tuple(Near(**each) for each in self._ties(affinity, "podAffinity")),
            apart=tuple(Apart(**each) for each in self._ties(affinity, "podAntiAffinity")),
            spread=tuple(self._spread(spec)),
        )

    def _node_rules(self, source: Map) -> Iterable[Where]:
        path = "spec.affinity.nodeAffinity"
        self._only(source, path, {_REQUIRED, _PREFERRED})
        terms = [self._term(each, path) for each in _list(_map(source, _REQUIRED), "nodeSelectorTerms")]
        if len(terms) == 1:
            yield from (Where(rule=rule) for rule in terms[0])
        elif terms and all(len(each) == 1 for each in terms):
            yield Where(any=tuple(each[0] for each in terms))
        elif terms:
            self._refuse(f"{path}.{_REQUIRED}", "several terms of several expressions")
        for wish in _list(source, _PREFERRED):
            rules = self._term(_map(wish, "preference"), path)
            if len(rules) == 1:
                yield Where(rule=rules[0], strength="prefer", weight=wish["weight"])
            else:
                self._refuse(f"{path}.{_PREFERRED}", "a preference of several expressions")

    def _term(self, source: Map, path: str) -> list[str]:
        self._only(source, path, {"matchExpressions", "matchFields"})
        return [
            _rule(each, path, self._refuse)
            for each in (*_list(source, "matchExpressions"), *_list(source, "matchFields"))
        ]

    def _ties(self, affinity: Map, key: str) -> Iterable[dict[str, Any]]:
        path, source = f"spec.affinity.{key}", _map(affinity, key)
        self._only(source, path, {_REQUIRED, _PREFERRED})
        for term in _list(source, _REQUIRED):
            if tie := self._tie(term, path):
                yield tie
        for wish in _list(source, _PREFERRED):
            if tie := self._tie(_map(wish, "podAffinityTerm"), path):
                yield {**tie, "strength": "prefer", "weight": wish["weight"]}

    def _tie(self, term: Map, path: str) -> dict[str, Any] | None:
        self._only(term, path, {"labelSelector", "topologyKey", "namespaces", "namespaceSelector"})
        match = self._selector(_map(term, "labelSelector"), f"{path}.labelSelector")
        if not match:
            return None
        namespaces = [str(each) for each in _list(term, "namespaces")]
        if "namespaceSelector" in term:
            labels = self._selector(term["namespaceSelector"], f"{path}.namespaceSelector", empty=True)
            namespaces += self._namespaces(labels) if labels else (_ALL,)
        return {"match": match, "namespaces": tuple(namespaces), "over": _fact(term["topologyKey"])}

    def _selector(self, source: Map, path: str, *, empty: bool = False) -> dict[str, str]:
        """Labels that must be equal; that is all `match` can say."""
        self._only(source, path, {"matchLabels", "matchExpressions"})
        labels = renamed(_map(source, "matchLabels"))
        for each in _list(source, "matchExpressions"):
            if each.get("operator") == "In" and len(each.get("values", ())) == 1:
                labels |= renamed({each["key"]: each["values"][0]})
            else:
                self._refuse(
                    f"{path}.matchExpressions", f"{each.get('operator')} of {len(each.get('values', ()))} values"
                )
        if not labels and not empty:
            self._refuse(path, "a selector of everything")
        return labels

    def _spread(self, spec: Map) -> Iterable[Spread]:
        path = "spec.topologySpreadConstraints"
        for each in _list(spec, "topologySpreadConstraints"):
            known = {"maxSkew", "topologyKey", "whenUnsatisfiable", "labelSelector", "minDomains"}
            policies = {key: value for key, value in each.items() if key.lower() in _POLICIES}
            self._only(each, path, known | set(policies))
            for key, value in policies.items():
                if value != _POLICIES[key.lower()]:
                    self._refuse(f"{path}.{key}", f"{value}; it is always {_POLICIES[key.lower()]}")
            if each.get("minDomains", 1) != 1:
                self._refuse(f"{path}.minDomains", "domains that do not exist are not counted")
            yield Spread(
                over=_fact(each["topologyKey"]),
                max_skew=each["maxSkew"],
                match=self._selector(_map(each, "labelSelector"), f"{path}.labelSelector"),
                strength="must" if each["whenUnsatisfiable"] == "DoNotSchedule" else "prefer",
            )

    def _tolerations(self, spec: Map) -> Iterable[Toleration]:
        path = "spec.tolerations"
        for each in _list(spec, "tolerations"):
            self._only(each, path, {"key", "operator", "value", "effect"})
            if each.get("key") == _UNSCHEDULABLE:
                self._refuse(path, "a cordoned node takes nothing new, whatever is tolerated")
                continue
            value = None if each.get("operator", "Equal") == "Exists" else str(each.get("value", ""))
            yield Toleration(each.get("key", ""), value, each.get("effect"))

    def _only(self, source: Map, path: str, known: set[str]) -> None:
        for key in source:
            if key not in known:
                self._refuse(f"{path}.{key}" if path else key, "has no counterpart")


def renamed(labels: Mapping[str, Any]) -> dict[str, str]:
    """Under the names that Mandor has for the usual facts; a node knows its own name."""
    return {_fact(key): str(value) for key, value in labels.items() if FACTS.get(key) != "node"}


def closer(priority: int) -> int:
    """A priority within Mandor's bounds, in the same order as before."""
    if abs(priority) <= _PRIORITY_KEPT:
        return priority
    beyond = (abs(priority) - _PRIORITY_KEPT) // 10_000
    return (_PRIORITY_KEPT + beyond) * (1 if priority > 0 else -1)


def _rule(source: Map, path: str, refuse: Refuse) -> str:
    fact, values = _fact(source["key"]), [str(each) for each in source.get("values", ())]
    listed = f"[{', '.join(values)}]"
    forms = {
        "In": f"{fact} in {listed}",
        "NotIn": f"{fact} not in {listed}",
        "Exists": f"{fact} exists",
        "DoesNotExist": f"{fact} not exists",
        "Gt": f"{fact} > {''.join(values)}",
        "Lt": f"{fact} < {''.join(values)}",
    }
    operator = source.get("operator")
    if operator not in forms:
        refuse(path, f"there is no operator {operator}")
        return f"{fact} exists"
    return forms[operator]


def _fact(key: str) -> str:
    return FACTS.get(key, key)


def _device(name: str, count: int) -> Device:
    """An extended resource, `vendor/kind`."""
    vendor, slash, kind = name.rpartition("/")
    return Device(kind, vendor if slash else None, count)


def _plain(gate: str) -> str:
    """A gate's name in the letters that names have here."""
    return gate.replace("/", "-").lower()


def _map(source: Map, key: str) -> Map:
    found = source.get(key)
    if found is None:
        return Map()
    if not isinstance(found, Map):
        raise Invalid(f"`{key}` is a mapping", line=source.lines.get(key, source.line))
    return found


def _list(source: Map, key: str) -> list[Any]:
    found = source.get(key)
    if found is None:
        return []
    if not isinstance(found, list):
        raise Invalid(f"`{key}` is a list", line=source.lines.get(key, source.line))
    return found
