"""Names of objects: prefixes, suffixes and hashes, and the references of other objects to them."""

from collections.abc import Callable, Sequence
from typing import Any

from mandor.importers.kustomize.objects import KustomizedObject

Rename = Callable[[str, str], str]
"""New name of an object by its kind and its name in a reference."""
_REFERENCES: dict[str, tuple[str, str]] = {
    "configMapRef": ("ConfigMap", "name"),
    "configMapKeyRef": ("ConfigMap", "name"),
    "configMap": ("ConfigMap", "name"),
    "secretRef": ("Secret", "name"),
    "secretKeyRef": ("Secret", "name"),
    "persistentVolumeClaim": ("PersistentVolumeClaim", "claimName"),
}
"""Kind and key of the name by the key of a reference in a pod."""


def rename(objects: Sequence[KustomizedObject], new: Callable[[KustomizedObject], str]) -> None:
    """Give each object its new name, and change the references of the others to it."""
    renamed: dict[tuple[str, str], str] = {}
    for each in objects:
        before, after = each.name, new(each)
        if after != before:
            renamed[each.kind, before] = after
            renamed.setdefault(each.original, after)
            each.meta["name"] = after
    if renamed:
        for each in objects:
            _refer(each, lambda kind, name: renamed.get((kind, name), name))


def _refer(each: KustomizedObject, new: Rename) -> None:
    for spec in each.pod_specs():
        _walk(spec, new)
        _change(spec, "serviceAccountName", "ServiceAccount", new)
        _change(spec, "serviceAccount", "ServiceAccount", new)
        _change(spec, "priorityClassName", "PriorityClass", new)
        for secret in spec.get("imagePullSecrets") or ():
            if isinstance(secret, dict):
                _change(secret, "name", "Secret", new)
    own = each.data.get("spec")
    if not isinstance(own, dict):
        return
    if each.kind == "StatefulSet":
        _change(own, "serviceName", "Service", new)
    target = own.get("scaleTargetRef")
    if isinstance(target, dict):
        _change(target, "name", str(target.get("kind")), new)
    if each.kind == "Ingress":
        _services(own, new)


def _walk(value: Any, new: Rename) -> None:
    """Change references inside a pod: environment, volumes."""
    if isinstance(value, list):
        for each in value:
            _walk(each, new)
    elif isinstance(value, dict):
        for key, each in value.items():
            if key in _REFERENCES and isinstance(each, dict):
                kind, name = _REFERENCES[key]
                _change(each, name, kind, new)
            elif key == "secret" and isinstance(each, dict):
                _change(each, "secretName", "Secret", new)
                _change(each, "name", "Secret", new)
            else:
                _walk(each, new)


def _services(value: Any, new: Rename) -> None:
    if isinstance(value, list):
        for each in value:
            _services(each, new)
    elif isinstance(value, dict):
        _change(value, "serviceName", "Service", new)
        for key, each in value.items():
            if key == "service" and isinstance(each, dict):
                _change(each, "name", "Service", new)
            else:
                _services(each, new)


def _change(holder: dict[str, Any], key: str, kind: str, new: Rename) -> None:
    if isinstance(name := holder.get(key), str):
        holder[key] = new(kind, name)
