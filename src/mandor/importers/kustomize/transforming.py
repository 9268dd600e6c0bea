"""Transformations of Kustomize: namespace, labels, annotations, images, replicas, and targets of patches."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mandor.importers.kustomize.objects import CLUSTER_KINDS, KustomizedObject
from mandor.importers.part import Part
from mandor.lib import regex

_IMAGE = re.compile(r"(?P<name>(?:[^/@]+/)*[^/:@]+)(?P<rest>(?::[^@]*)?(?:@.*)?)")
_SELECTED = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"})


def set_namespace(objects: Sequence[KustomizedObject], namespace: str) -> None:
    for each in objects:
        if each.kind not in CLUSTER_KINDS:
            each.meta["namespace"] = namespace


def add_labels(objects: Sequence[KustomizedObject], pairs: dict[str, str], *, selectors: bool, templates: bool) -> None:
    """Add labels to the objects; `selectors`: also to what selects pods; `templates`: also to pods."""
    for each in objects if pairs else ():
        _put(each.meta, "labels", pairs)
        spec = each.data.get("spec")
        if templates:
            for template in each.templates():
                _put(_mapping(template, "metadata"), "labels", pairs)
        if selectors and isinstance(spec, dict):
            _select(each.kind, spec, pairs)


def _select(kind: str, spec: dict[str, Any], pairs: dict[str, str]) -> None:
    if kind in _SELECTED or (kind in {"PodDisruptionBudget", "Job"} and "selector" in spec):
        _put(_mapping(spec, "selector"), "matchLabels", pairs)
    elif kind in {"ReplicationController", "DeploymentConfig"} or (kind == "Service" and spec.get("selector")):
        _put(spec, "selector", pairs)
    elif kind == "NetworkPolicy":
        _put(_mapping(spec, "podSelector"), "matchLabels", pairs)


def add_annotations(objects: Sequence[KustomizedObject], pairs: dict[str, str]) -> None:
    for each in objects if pairs else ():
        _put(each.meta, "annotations", pairs)
        for template in each.templates():
            _put(_mapping(template, "metadata"), "annotations", pairs)


def _mapping(holder: dict[str, Any], key: str) -> dict[str, Any]:
    found = holder.get(key)
    if not isinstance(found, dict):
        found = holder[key] = {}
    return found


def _put(holder: dict[str, Any], key: str, pairs: dict[str, str]) -> None:
    _mapping(holder, key).update(pairs)


def set_replicas(objects: Sequence[KustomizedObject], name: str, count: int) -> bool:
    """Set the number of pods; return whether an object has the name."""
    found = [
        each for each in objects if name in {each.name, each.original[1]} and isinstance(each.data.get("spec"), dict)
    ]
    for each in found:
        if each.kind in {*_SELECTED, "ReplicationController", "DeploymentConfig"}:
            each.data["spec"]["replicas"] = count
    return bool(found)


def set_image(
    objects: Sequence[KustomizedObject], name: str, new_name: str | None, tag: str | None, digest: str | None
) -> bool:
    """Replace name, tag or digest of an image in all containers; return whether a container has it."""
    changed = False
    for container in _containers(objects):
        match = _IMAGE.fullmatch(str(container.get("image") or ""))
        if match is None or match["name"] != name:
            continue
        rest = f"@{digest}" if digest else f":{tag}" if tag else match["rest"]
        container["image"] = f"{new_name or name}{rest}"
        changed = True
    return changed


def _containers(objects: Sequence[KustomizedObject]) -> Iterator[dict[str, Any]]:
    for each in objects:
        for spec in each.pod_specs():
            for key in ("initContainers", "containers", "ephemeralContainers"):
                listed = spec.get(key)
                yield from (item for item in (listed if isinstance(listed, list) else ()) if isinstance(item, dict))


@dataclass(frozen=True, slots=True)
class Target:
    """Selects the objects of a patch; names, kinds and namespaces are regular expressions for the whole text."""

    group: str | None = None
    version: str | None = None
    kind: str | None = None
    name: str | None = None
    namespace: str | None = None
    labels: str | None = None
    annotations: str | None = None
    exact: bool = False
    """A strategic merge patch names its object: no expressions."""

    def __str__(self) -> str:
        words = (self.kind, self.name, self.namespace, self.labels)
        return " ".join(word for word in words if word) or "any"

    @classmethod
    def read(cls, part: Part) -> "Target":
        return cls(
            part.text("group"),
            part.text("version"),
            part.text("kind"),
            part.text("name"),
            part.text("namespace"),
            part.text("labelSelector"),
            part.text("annotationSelector"),
        )

    @classmethod
    def of(cls, patch: dict[str, Any]) -> "Target":
        """Return the target of a strategic merge patch: the object that it names."""
        meta = patch.get("metadata")
        given = meta if isinstance(meta, dict) else {}
        group = str(patch.get("apiVersion") or "").rpartition("/")[0]
        namespace = given.get("namespace")
        return cls(
            group=group or None,
            kind=str(patch.get("kind") or ""),
            name=str(given.get("name") or ""),
            namespace=str(namespace) if namespace else None,
            exact=True,
        )

    def matches(self, each: KustomizedObject) -> bool:
        group, version = each.group_version
        names = {each.name, each.original[1]}
        return (
            self._same(self.group, group)
            and self._same(self.version, version)
            and self._same(self.kind, each.kind)
            and any(self._same(self.name, name) for name in names)
            and self._same(self.namespace, each.namespace or "default")
            and _selects(self.labels, each.meta.get("labels"))
            and _selects(self.annotations, each.meta.get("annotations"))
        )

    def _same(self, wanted: str | None, found: str) -> bool:
        if not wanted:
            return True
        return wanted == found if self.exact else wanted == found or regex.compiled(wanted).fullmatch(found) is not None


def _selects(selector: str | None, pairs: Any) -> bool:
    """Return whether labels fit a selector such as `app=web,tier!=db,beta`."""
    held = pairs if isinstance(pairs, dict) else {}
    for term in (selector or "").split(","):
        name, sign, value = re.split(r"(!=|==|=|$)", term.strip(), maxsplit=1)
        if not name.strip():
            continue
        has = str(held.get(name.strip(), "")) == value.strip() if sign in {"=", "=="} else name.strip() in held
        if sign == "!=":
            has = str(held.get(name.strip(), "")) != value.strip()
        if not has:
            return False
    return True
