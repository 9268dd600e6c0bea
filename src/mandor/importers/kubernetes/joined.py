"""Objects that change workloads: disruption budgets, autoscalers."""

from collections.abc import Callable, Sequence
from typing import Any

from mandor.importers.base import filled
from mandor.importers.kubernetes.amounts import duration, share
from mandor.importers.kubernetes.meta import ObjectMeta, drop_labels, read_meta
from mandor.importers.kubernetes.selector import chooses
from mandor.importers.kubernetes.shelf import place
from mandor.importers.kubernetes.work import Work
from mandor.importers.part import Part
from mandor.model.share import share_of

_NOBODY = "it selects no workload of these files"


def join(part: Part, kind: str, works: Sequence[Work]) -> None:
    part.text("apiVersion"), part.text("kind")
    part.ignore("status")
    meta = read_meta(part)
    part.part("metadata").ignore("name")  # no other object refers to it by name
    _JOINS[kind](part, meta, [each for each in works if place(each.namespace) == place(meta.namespace)])


# Disruption budgets.


def _budget(part: Part, meta: ObjectMeta, works: list[Work]) -> None:
    spec = part.part("spec")
    selector = spec.part("selector")
    everybody = "selector" in spec and part.peek("apiVersion") == "policy/v1"
    chosen = [each for each in works if (selector or everybody) and chooses(selector, each.labels)]
    if not chosen:
        part.drop_all("kind", _NOBODY)
        return
    drop_labels(part, [each.labels for each in chosen])
    spec.drop("unhealthyPodEvictionPolicy", "instances that are not ready count as unavailable")
    for work in chosen:
        kind = work.manifest.get("type")
        if kind is not None:
            spec.guess("selector", f"{work.manifest['name']} is a {kind}, and has no budget")
            continue
        most = _most(spec, work)
        if most is not None:
            work.group["disruption"] = {"max_unavailable": most}


def _most(spec: Part, work: Work) -> int | str | None:
    found, least = share(spec, "maxUnavailable"), share(spec, "minAvailable")
    key = "maxUnavailable"
    if found is None and least is not None:
        key, replicas = "minAvailable", work.replicas if work.replicas is not None else 1
        found = max(0, replicas - share_of(least, replicas, up=True))
        spec.guess(key, f"of {replicas} replicas, {found} may be taken away at a time")
    if found in {0, "0%"} and work.group.get("update", {}).get("order") == "stop-first":
        spec.guess(key, "1 instance may be unavailable: it is stopped before it is replaced")
        return 1
    return found


# Autoscalers.


def _autoscaler(part: Part, meta: ObjectMeta, works: list[Work]) -> None:
    spec = part.part("spec")
    target = spec.part("scaleTargetRef")
    kind, name = target.text("kind"), target.text("name")
    target.ignore("apiVersion")
    work = next((each for each in works if (each.kind, each.name) == (kind, name)), None)
    if work is None:
        part.drop_all("kind", f"there is no {kind} {name} among these files")
        return
    targets = _targets(spec)
    if not targets:
        part.drop_all("kind", "none of its metrics is supported", "`autoscale: {metric: …}`")
        return
    drop_labels(part, [work.labels])
    least, most = spec.whole("minReplicas"), spec.whole("maxReplicas") or 1
    behaviour = spec.part("behavior")
    work.group["autoscale"] = filled(
        min=None if least == 1 else least,
        max=most,
        **targets,
        up=_pace(behaviour.part("scaleUp"), {"instances": 4, "percent": "100%", "per": "15s"}),
        down=_pace(behaviour.part("scaleDown"), {"window": "5m"}),
    )
    if not (least or 1) <= (work.replicas or 1) <= most:
        work.group.pop("replicas", None)


def _targets(spec: Part) -> dict[str, str]:
    found: dict[str, str] = {}
    average = spec.whole("targetCPUUtilizationPercentage")
    if average is not None:
        found["cpu"] = f"{average}%"
    for each in spec.parts("metrics"):
        resource = each.part("resource") if each.text("type") == "Resource" else None
        target = resource.part("target") if resource is not None else None
        name = resource.text("name") if resource is not None else None
        share = target.whole("averageUtilization") if target is not None else None
        if share is None and resource is not None:
            share = resource.whole("targetAverageUtilization")  # the form of version v2beta1
        if name in {"cpu", "memory"} and share is not None and target is not None:
            if (target.text("type") or "Utilization") != "Utilization":
                raise target.wrong("type", "a share of what is asked for is a `Utilization`")
            found[name or ""] = f"{share}%"
        else:
            each.drop_all("type", "only CPU and memory relative to the request are measured")
    return found


def _pace(part: Part, usual: dict[str, Any]) -> dict[str, Any] | None:
    if not part:
        return None
    found = dict(usual)
    window = duration(part, "stabilizationWindowSeconds")
    if "stabilizationWindowSeconds" in part:
        found["window"] = window or "0s"
    if part.text("selectPolicy") in {"Min", "Disabled"}:
        part.drop("selectPolicy", "the larger step applies")
    part.drop("tolerance", "is the same in both directions")
    if "policies" in part:
        for key in ("instances", "percent", "per"):
            found.pop(key, None)
    for each in part.parts("policies"):
        value, period = each.whole("value") or 1, duration(each, "periodSeconds") or "1m"
        found["instances" if each.text("type") == "Pods" else "percent"] = (
            value if each.peek("type") == "Pods" else f"{value}%"
        )
        if found.setdefault("per", period) != period:
            each.guess("periodSeconds", f"both steps are per {found['per']}")
    return found


Join = Callable[[Part, ObjectMeta, list[Work]], None]
_JOINS: dict[str, Join] = {
    "PodDisruptionBudget": _budget,
    "HorizontalPodAutoscaler": _autoscaler,
}
JOINED_KINDS = frozenset(_JOINS)
