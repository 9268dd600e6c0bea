"""Converts priority classes, quotas, default limits, claims and namespaces."""

from collections.abc import Callable
from typing import Any

from mandor.importers.base import filled, fitting_name
from mandor.importers.kubernetes.amounts import CPU, DISK, MEMORY, amount, amounts_of, cpu, named, size
from mandor.importers.kubernetes.meta import ObjectMeta, read_meta
from mandor.importers.kubernetes.volumes import claim_volume
from mandor.importers.part import Part
from mandor.model.resources import device_amounts, device_name, page_bytes

Manifest = dict[str, Any]


def read_policy(part: Part, kind: str) -> Manifest | None:
    """Return the manifest of the object; None: nothing of it has a counterpart."""
    part.text("apiVersion"), part.text("kind")
    part.ignore("status")
    meta = read_meta(part)
    return _KINDS[kind](part, meta)


def _head(kind: str, meta: ObjectMeta, *, namespaced: bool = True) -> Manifest:
    name = fitting_name(meta.name, most=63 if kind != "volume" else 253)
    namespace = meta.namespace if namespaced else ""
    return {"kind": kind} | filled(name=name, namespace=namespace or None, labels=dict(meta.labels))


def _priority_class(part: Part, meta: ObjectMeta) -> Manifest:
    value = part.whole("value") or 0
    return _head("priority-class", meta, namespaced=False) | filled(
        value=value,
        default=part.flag("globalDefault") or None,
        preempt="never" if _preemption(part) == "Never" else None,
        description=(part.text("description") or "")[:1024] or None,
    )


def _preemption(part: Part) -> str | None:
    given = part.text("preemptionPolicy")
    if given not in {None, "Never", "PreemptLowerPriority"}:
        raise part.wrong("preemptionPolicy", f"{given!r} is neither Never nor PreemptLowerPriority")
    return given


def _namespace(part: Part, meta: ObjectMeta) -> Manifest:
    part.part("spec").ignore("finalizers")
    return _head("namespace", meta, namespaced=False)


def _claim(part: Part, meta: ObjectMeta) -> Manifest:
    return _head("volume", meta) | claim_volume(part.part("spec"))


def _quota(part: Part, meta: ObjectMeta) -> Manifest | None:
    spec = part.part("spec")
    if spec.peek("scopes"):
        part.drop_all("kind", "a quota for some workloads can select them by priority class only")
        return None
    priority_class = None
    for each in spec.part("scopeSelector").parts("matchExpressions"):
        values = each.texts("values")
        same = (each.text("scopeName"), each.text("operator")) == ("PriorityClass", "In") and len(values) == 1
        if not same or priority_class is not None:
            part.drop_all("kind", "a quota for some workloads can select them by priority class only")
            return None
        priority_class = values[0]
    limits = _quota_amounts(spec)
    if not limits:
        part.drop_all("kind", "it limits nothing that is counted here")
        return None
    return _head("quota", meta) | limits | filled(priority_class=priority_class)


_COUNTED = {CPU: "cpu", MEMORY: "memory", DISK: "disk", "storage": ""}


def _quota_amounts(spec: Part) -> Manifest:
    found: Manifest = {}
    devices: dict[str, int] = {}
    hard = spec.part("hard")
    for key in hard.keys():  # noqa: SIM118 - a part is no dict
        text, bare = hard.text(key) or "", key.removeprefix("requests.")
        try:
            if key in {"pods", "count/pods"}:
                found["instances"] = int(amount(text))
            elif _COUNTED.get(bare):
                found[_COUNTED[bare]] = cpu(text) if bare == CPU else size(text)
            elif (pages := page_bytes(bare)) is not None and not key.startswith("limits."):
                devices[device_name(bare)] = int(amount(text) / pages)
            elif "/" in bare and not key.startswith(("count/", "limits.")) and "storageclass" not in key:
                devices |= {device_name(bare): int(amount(text))} if device_amounts(bare, 0) else {}
            else:
                hard.drop(key, "quotas do not count this resource")
        except ValueError as error:
            raise hard.wrong(key, str(error)) from None
    return filled(**found, devices=devices)


def _limit_range(part: Part, meta: ObjectMeta) -> Manifest | None:
    spec = part.part("spec")
    found: Manifest = {}
    for each in spec.parts("limits"):
        if each.text("type") != "Container" or found:
            each.drop_all("type", "limit defaults apply to tasks only, with one object per namespace")
            continue
        usual, asked, most = (named(amounts_of(each, key)) for key in ("default", "defaultRequest", "max"))
        each.drop("min", "minimum requests are not supported")
        each.drop("maxLimitRequestRatio", "the ratio of limit to request is not restricted")
        for bound in (usual, most):
            if bound.pop("disk", None):
                each.guess("type", "the disk is kept free, and not limited")
        found = filled(resources=filled(**({**usual, **asked}), limits=usual), most=most)
    if not found:
        part.drop_all("kind", "it says nothing about tasks that could be said here")
        return None
    return _head("limit-defaults", meta) | found


_KINDS: dict[str, Callable[[Part, ObjectMeta], Manifest | None]] = {
    "Namespace": _namespace,
    "PriorityClass": _priority_class,
    "ResourceQuota": _quota,
    "LimitRange": _limit_range,
    "PersistentVolumeClaim": _claim,
}
POLICY_KINDS = frozenset(_KINDS)
