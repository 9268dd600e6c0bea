"""Objects of a Kustomization: plain data that transformations change, and the place where each was written."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mandor.lib.yaml12 import List, Map, Parsed

CLUSTER_KINDS = frozenset(
    {
        *("Namespace", "PriorityClass", "PersistentVolume", "StorageClass", "ClusterRole", "ClusterRoleBinding"),
        *("CustomResourceDefinition", "APIService", "IngressClass", "RuntimeClass", "Node", "CSIDriver"),
        *("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration", "VolumeAttachment"),
    }
)
"""Kinds without a namespace."""
UNPREFIXED = frozenset({"Namespace", "CustomResourceDefinition", "APIService"})
"""Kinds whose names keep their form."""
WITH_PODS = frozenset(
    {
        *("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod"),
        *("DeploymentConfig", "PodTemplate"),
    }
)


@dataclass(slots=True)
class KustomizedObject:
    """One object; `data` is changed in place, `source` keeps lines and texts as they were written."""

    data: dict[str, Any]
    source: Map
    file: str
    line: int
    original: tuple[str, str] = ("", "")
    """Kind and name before prefixes and suffixes, by which other objects refer to it."""
    hashed: bool = False
    """Generated, with a hash of its content at the end of its name."""

    def __post_init__(self) -> None:
        self.original = self.original if self.original[1] else (self.kind, self.name)

    @property
    def kind(self) -> str:
        return str(self.data.get("kind") or "")

    @property
    def meta(self) -> dict[str, Any]:
        found = self.data.get("metadata")
        if not isinstance(found, dict):
            found = self.data["metadata"] = {}
        return found

    @property
    def name(self) -> str:
        return str(self.meta.get("name") or "")

    @property
    def namespace(self) -> str:
        return str(self.meta.get("namespace") or "")

    @property
    def group_version(self) -> tuple[str, str]:
        group, _, version = str(self.data.get("apiVersion") or "").rpartition("/")
        return group, version

    def pod_specs(self) -> Iterator[dict[str, Any]]:
        """Return the pod specs inside the object."""
        for template in self.templates():
            if isinstance(spec := template.get("spec"), dict):
                yield spec

    def templates(self) -> Iterator[dict[str, Any]]:
        """Return the mappings with `metadata` and `spec` of a pod: the object itself, or its template."""
        if self.kind not in WITH_PODS:
            return
        if self.kind == "Pod":
            yield self.data
            return
        spec: Any = self.data.get("spec")
        if self.kind == "CronJob" and isinstance(spec, dict):
            job = spec.get("jobTemplate")
            spec = job.get("spec") if isinstance(job, dict) else None
        owner = self.data if self.kind == "PodTemplate" else spec
        if isinstance(owner, dict) and isinstance(template := owner.get("template"), dict):
            yield template

    def parsed(self) -> Parsed:
        return Parsed(_with_lines(self.data, self.source, self.line), self.line)


def _with_lines(value: Any, source: Any, line: int) -> Any:
    """Return changed data with the lines and the typed texts of the source, where it has them."""
    if isinstance(value, dict):
        held = source if isinstance(source, Map) else Map(line)
        made = Map(held.line or line)
        for key, each in value.items():
            at, inner = held.lines.get(key, held.line or line), held.get(key)
            text = held.texts.get(key) if inner == each else None
            made.set(str(key), _with_lines(each, inner, at), at, text)
        return made
    if isinstance(value, list):
        listed = List(line)
        for index, each in enumerate(value):
            place = _place(each, index, source)
            inner = source[place] if place is not None else None
            at = source.lines[place] if isinstance(source, List) and place is not None else line
            text = source.texts.get(place) if isinstance(source, List) and place is not None and inner == each else None
            listed.add(_with_lines(each, inner, at), at, text)
        return listed
    return value


def _place(value: Any, index: int, source: Any) -> int | None:
    """Return the index of an item in the source: by its name, else by its place."""
    if not isinstance(source, list):
        return None
    if isinstance(value, dict) and "name" in value:
        return next(
            (at for at, each in enumerate(source) if isinstance(each, dict) and each.get("name") == value["name"]), None
        )
    return index if index < len(source) else None
