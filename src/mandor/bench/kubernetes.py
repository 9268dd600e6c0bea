"""Converts Node and Pod templates of Kubernetes into nodes and groups; unsupported keys are errors.

Pods are converted by the importer; this module adds what only measurements have: nodes, gates, pod groups.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mandor.errors import Invalid
from mandor.importers.kubernetes.placement import FindNamespaces, PlacementReader
from mandor.importers.kubernetes.pod import PodReader
from mandor.importers.kubernetes.shelf import Owner, ReferencedObjects
from mandor.importers.kubernetes.words import PROFILES, plain_name, renamed
from mandor.importers.part import Ledger, Part
from mandor.lib.quantity import Cpu, Size
from mandor.lib.yaml12 import List, Map
from mandor.model import reading
from mandor.model.group import Group
from mandor.model.meta import Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus, Taint
from mandor.model.resources import Resources, device_amounts, device_name

_AMOUNTS: dict[str, Callable[[str], int]] = {"cpu": Cpu.parse, "memory": Size.parse, "ephemeral-storage": Size.parse}
_ENGINES = {"docker": Capabilities(images=True)}
_IMAGE = "pause"
_MAPPED = {"containers", "initContainers", "affinity", "nodeSelector", "tolerations", "topologySpreadConstraints"} | {
    "terminationGracePeriodSeconds"
}
"""Keys of a pod that are part of its group."""
_BESIDE = {"priority", "priorityClassName", "schedulingGates", "schedulerName", "schedulingGroup"}
_CONTAINER = {"name", "image", "ports", "resources", "command", "args"}
_INDEX = re.compile(r"\[\d+\]")

Refuse = Callable[[str, str], None]
"""Called with a key that cannot be mapped, and the reason; raises, or notes it and drops the key."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A converted pod template; its copies are instances of one workload."""

    group: Group
    labels: dict[str, str]
    priority: int
    gates: tuple[str, ...]
    profile: str
    name: str | None
    """Name of the pod; None: generated."""
    stem: str
    finalizers: bool
    """Deletion only marks the pod: a finalizer must be removed first."""
    pod_group: str | None
    """PodGroup of the pod."""


@dataclass(frozen=True, slots=True)
class PodGroup:
    name: str
    least: int | None
    """Minimum number of pods that must be bound together; None: pods are independent."""


class Reader:
    """Converts one template. Keys without a counterpart are reported by their path, and dropped if that is allowed."""

    def __init__(
        self,
        refuse: Refuse,
        namespaces: FindNamespaces | None = None,
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
                devices |= device_amounts(device_name(name), int(count))
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
        self._only(spec, "spec", _MAPPED | _BESIDE)
        return Pod(
            group=self._group(spec),
            labels=renamed(_map(meta, "labels")),
            priority=self._priority(spec),
            gates=tuple(plain_name(each["name"]) for each in _list(spec, "schedulingGates")),
            profile=PROFILES.get(spec.get("schedulerName", "default"), spec.get("schedulerName", "default")),
            name=meta.get("name"),
            stem=str(meta.get("generateName", "pod-")),
            finalizers=bool(meta.get("finalizers")),
            pod_group=_map(spec, "schedulingGroup").get("podGroupName"),
        )

    def _group(self, spec: Map) -> Group:
        """Return the group as an import would create it; guessed keys are errors, too."""
        ledger = Ledger()
        pods = PodReader(ReferencedObjects(), PlacementReader(self._namespaces, _dropped))
        found = pods.read(ledger.open(self._mapped(spec), "", "spec"), Owner())
        for note in ledger.report().notes:
            self._refuse(_INDEX.sub("", note.path), note.text)
        for task in found.tasks.values():
            task.setdefault("image", _IMAGE)
        reader = reading.Reader()
        group = reader.read({**found.group, "tasks": found.tasks}, Group, "", spec.line)
        if reader.mistakes:
            raise ValueError(reader.mistakes[0].message)
        assert isinstance(group, Group)
        return group

    def _mapped(self, spec: Map) -> Map:
        """Check that all keys are known."""
        kept = Map(spec.line)
        for key in spec:
            if key in _MAPPED:
                kept.take(key, spec)
        for key in ("initContainers", "containers"):
            if key not in kept:
                continue
            containers = List(spec.lines.get(key, spec.line))
            for source in _list(spec, key):
                self._only(source, f"spec.{key}", _CONTAINER)
                container = Map(source.line)
                for name in source:
                    if name in _CONTAINER:
                        container.take(name, source)
                containers.add(container, source.line)
            kept.set(key, containers, containers.line)
        return kept

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

    def _only(self, source: Map, path: str, known: set[str]) -> None:
        for key in source:
            if key not in known:
                self._refuse(f"{path}.{key}" if path else key, "has no counterpart")


def _dropped(part: Part, key: str, why: str) -> None:
    part.drop(key, why)


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
