"""Converts each kind that runs pods into a manifest with one group."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import filled, fitting_name, knows
from mandor.importers.compose.amounts import seconds_of
from mandor.importers.kubernetes.amounts import duration, seconds, share
from mandor.importers.kubernetes.meta import ObjectMeta, annotation_labels, read_meta
from mandor.importers.kubernetes.pod import Pod, PodReader
from mandor.importers.kubernetes.selector import chooses
from mandor.importers.kubernetes.shelf import Owner
from mandor.importers.kubernetes.usual import Unusual, drop_unusual
from mandor.importers.kubernetes.words import renamed
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds
from mandor.model.batch import Batch
from mandor.model.group import FLAT
from mandor.model.schedule import RUN_NAME_MOST

_RETRIES, _RETRIES_MOST = 6, 1000
_MIN_HEALTHY = 10.0
_KEEP = 3
_LABELS_MOST = 48
_OVERLAPS = {"Allow": "allow", "Forbid": "forbid", "Replace": "replace"}


@dataclass(slots=True)
class Work:
    """A workload that other objects of the file can still change."""

    part: Part
    kind: str
    name: str
    """Name in Kubernetes."""
    namespace: str
    labels: Mapping[str, str]
    """Labels of its pods, for selectors."""
    pod: Pod
    manifest: dict[str, Any]
    replicas: int | None = None

    @property
    def group(self) -> dict[str, Any]:
        """Return the mapping for keys of the group: the manifest itself, if it is flat."""
        groups = self.manifest.get("groups")
        return self.manifest if groups is None else groups[FLAT]


@dataclass(slots=True)
class _Form:
    """Settings that a kind adds to its pod."""

    type: str | None = None
    replicas: int | None = None
    group: dict[str, Any] = field(default_factory=dict)
    workload: dict[str, Any] = field(default_factory=dict)
    name_most: int = 63
    gate: str | None = None
    """Gate that keeps new instances from starting."""


def read_work(part: Part, kind: str, pods: PodReader) -> Work:
    part.text("apiVersion"), part.text("kind")
    part.ignore("status")
    meta = read_meta(part, keeps=True)
    return _KINDS[kind](part, kind, meta, pods)


_OF_SERVICES: Unusual = {
    "revisionHistoryLimit": ("the cluster determines how many releases it keeps", (10,)),
}


def _service(part: Part, kind: str, meta: ObjectMeta, pods: PodReader) -> Work:
    """Deployment, ReplicaSet, ReplicationController, StatefulSet, DaemonSet."""
    spec = part.part("spec")
    form = _Form(replicas=spec.whole("replicas"))
    if kind == "DaemonSet":
        form = _Form(type="daemon")
        spec.drop("replicas", "a daemon is on every node that matches")
    drop_unusual(spec, _OF_SERVICES)
    if spec.flag("paused"):
        form.gate = "paused"
        spec.guess("paused", "no instance starts until the gate `paused` is removed")
    claims, keep = _claims(spec) if kind == "StatefulSet" else ([], True)
    pod, labels = _template(spec, meta, pods, claims, keep=keep)
    _selector(spec, labels)
    inner = spec.part("template").part("spec")
    inner.drop("activeDeadlineSeconds", "services have no deadline")
    if pod.restart != "Always":
        raise inner.wrong("restartPolicy", f"the pods of a {kind} are always restarted: `Always`")
    if kind == "DaemonSet" and pod.group.get("placement", {}).pop("spread", None):
        spec.part("template").part("spec").drop("topologySpreadConstraints", "a daemon is on every node that matches")
    update = _update(spec, kind)
    if any(each.get("per_instance") for each in pod.group.get("volumes", {}).values()) and "max_surge" in update:
        _strategy(spec).guess("rollingUpdate", "instances with their own volumes stop before their replacement starts")
        update = {"order": "stop-first"} | {key: update[key] for key in ("min_healthy", "deadline") if key in update}
    form.group = filled(update=update)
    return _made(part, kind, meta, pod, labels, form)


def _selector(spec: Part, labels: Mapping[str, str]) -> None:
    """Check the selector: it must select the pods of the template."""
    selector = spec.part("selector")
    if {"matchLabels", "matchExpressions"} & set(selector.keys()):
        fits = chooses(selector, labels)
    else:  # of a ReplicationController: labels only
        fits = spec.text_map("selector").items() <= labels.items()
    if not fits:
        raise spec.wrong(
            "selector", "it does not choose the pods of its own template", "see `template.metadata.labels`"
        )


_OF_CONFIGS: Unusual = {
    "test": ("it is not a test: its pods stay", ()),
}


def _deployment_config(part: Part, kind: str, meta: ObjectMeta, pods: PodReader) -> Work:
    """OpenShift's form of a Deployment."""
    spec = part.part("spec")
    for each in spec.parts("triggers"):
        if each.text("type") == "ConfigChange":
            continue
        each.drop_rest("image streams are not followed")
        each.guess("type", "a new image is rolled out when it is applied", "`mandor apply` with the new image")
    drop_unusual(spec, _OF_CONFIGS)
    strategy = spec.part("strategy")
    for key in ("customParams", "resources", "labels", "annotations", "activeDeadlineSeconds"):
        strategy.drop(key, "there is no pod that rolls out")
    for key in ("rollingParams", "recreateParams"):
        params = strategy.part(key)
        for name in ("updatePeriodSeconds", "intervalSeconds"):
            params.drop(name, "the next instances follow when the previous ones are healthy")
        for name in ("pre", "mid", "post"):
            params.drop(name, "lifecycle hooks are not supported")
    return _service(part, kind, meta, pods)


def _strategy(spec: Part) -> Part:
    return spec.part("strategy" if "strategy" in spec else "updateStrategy")


def _update(spec: Part, kind: str) -> dict[str, Any]:
    strategy = _strategy(spec)
    rolling = strategy.part("rollingParams" if kind == "DeploymentConfig" else "rollingUpdate")
    how = strategy.text("type") or "RollingUpdate"
    ready, deadline = seconds(spec, "minReadySeconds"), seconds(spec, "progressDeadlineSeconds")
    if kind == "DeploymentConfig":
        ended = strategy.part("recreateParams") if how == "Recreate" else rolling
        deadline = seconds(ended, "timeoutSeconds") or deadline
        if how == "Custom":
            strategy.drop("type", "instances are replaced one after another")
    if deadline is not None and ready is None and deadline <= _MIN_HEALTHY:
        ready = 0.0
    timing = filled(
        min_healthy=None if ready is None else str(Seconds(ready)),
        deadline=None if deadline is None else str(Seconds(deadline)),
    )
    if rolling.whole("partition"):
        rolling.drop("partition", "a roll-out cannot stop at an instance number", "`update: {strategy: canary}`")
    if how == "Recreate":
        return {"order": "stop-first", "max_unavailable": "100%"} | timing
    if how == "OnDelete":
        strategy.drop("type", "instances are replaced when the template changes")
    surge, away = share(rolling, "maxSurge"), share(rolling, "maxUnavailable")
    if kind == "DaemonSet" and surge is not None:
        rolling.drop("maxSurge", "a node never runs two instances of a daemon")
        surge = None
    if kind in {"StatefulSet", "DaemonSet"} and surge is None:
        return {"order": "stop-first", "max_unavailable": away or 1} | timing
    if away is not None and surge in {0, "0%"} and away in {0, "0%"}:
        raise rolling.wrong("maxUnavailable", "with maxSurge 0 as well, no pod could ever be replaced")
    return filled(max_surge=surge, max_unavailable=away) | timing


def _claims(spec: Part) -> tuple[list[Part], bool]:
    if spec.text("podManagementPolicy") == "OrderedReady":
        spec.guess("podManagementPolicy", "instances are started together")
    if "serviceName" in spec:
        spec.text("serviceName")
        spec.guess("serviceName", "each instance has a name that resolves to its address")
    spec.drop("ordinals", "instances are counted from 0")
    policy = spec.part("persistentVolumeClaimRetentionPolicy")
    if policy.text("whenScaled") == "Delete":
        policy.drop("whenScaled", "volumes are kept until their workload is deleted")
    return spec.parts("volumeClaimTemplates"), policy.text("whenDeleted") != "Delete"


def _template(
    spec: Part, meta: ObjectMeta, pods: PodReader, claims: list[Part] | None = None, *, keep: bool = True
) -> tuple[Pod, dict[str, str]]:
    template = spec.part("template")
    inner = read_meta(template, keeps=True)
    template.part("metadata").ignore("name")  # Kubernetes ignores it, too
    owner = Owner(meta.namespace, inner.labels, inner.annotations)
    return pods.read(template.part("spec"), owner, claims, keep=keep), dict(inner.labels)


# Batches.


def _pod(part: Part, kind: str, meta: ObjectMeta, pods: PodReader) -> Work:
    spec = part.part("spec")
    pod = pods.read(spec, Owner(meta.namespace, meta.labels, meta.annotations))
    form = _Form()
    if pod.restart != "Always":
        form = _batch_form(pod, filled(retries=0, deadline=pod.deadline))
        if pod.restart == "OnFailure":
            form.group = {"restart": {"policy": "on-failure"}}
    elif pod.deadline:
        spec.drop("activeDeadlineSeconds", "services have no deadline")
    return _made(part, kind, meta, pod, dict(meta.labels), form)


def _job(part: Part, kind: str, meta: ObjectMeta, pods: PodReader) -> Work:
    spec = part.part("spec")
    pod, labels, batch = _job_spec(spec, meta, pods)
    form = _batch_form(pod, batch)
    form.gate = _gate(spec)
    return _made(part, kind, meta, pod, labels, form)


def _gate(spec: Part) -> str | None:
    """Return the gate of a job that Kubernetes does not run."""
    if spec.flag("suspend"):
        spec.guess("suspend", "no instance starts until the gate `suspended` is removed")
        return "suspended"
    if spec.whole("parallelism") == 0:
        spec.guess("parallelism", "no instance starts until the gate `suspended` is removed")
        return "suspended"
    return None


def _cron(part: Part, kind: str, meta: ObjectMeta, pods: PodReader) -> Work:
    spec = part.part("spec")
    template = spec.part("jobTemplate")
    inner = read_meta(template)
    pod, labels, batch = _job_spec(template.part("spec"), meta, pods)
    labels = {**inner.labels, **labels}
    form = _batch_form(pod, batch)
    form.workload["schedule"] = _schedule(spec)
    form.gate = _gate(template.part("spec"))
    form.name_most = RUN_NAME_MOST
    return _made(part, kind, meta, pod, labels, form)


def _every(spec: Part, given: str) -> str:
    """Return a period as a cron expression, where there is one."""
    try:
        minutes = seconds_of(given) / 60
    except ValueError as error:
        raise spec.wrong("schedule", str(error)) from None
    spec.guess("schedule", "it is counted from the full hour or midnight, not from when it was made")
    if minutes in {1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30}:
        return f"*/{minutes:g} * * * *"
    if minutes in {60, 120, 180, 240, 360, 480, 720, 1440}:
        return f"0 */{minutes / 60:g} * * *" if minutes < 1440 else "0 0 * * *"
    raise spec.wrong(
        "schedule", f"every {given[:40]} falls on no regular times of a day", "write it as a cron expression"
    )


def _schedule(spec: Part) -> dict[str, Any]:
    policy = spec.text("concurrencyPolicy") or "Allow"
    if policy not in _OVERLAPS:
        raise spec.wrong("concurrencyPolicy", f"there is no policy {policy[:40]!r}")
    cron, zone = spec.text("schedule") or "", spec.text("timeZone")
    if cron.startswith(("TZ=", "CRON_TZ=")):
        zone, _, cron = cron.partition("=")[2].partition(" ")
    if cron.startswith("@every "):
        cron = _every(spec, cron.removeprefix("@every ").strip())
    late = seconds(spec, "startingDeadlineSeconds")
    if late is not None and late != 60:
        spec.guess("startingDeadlineSeconds", "runs that are more than a minute late are skipped or caught up")
    kept = [spec.whole(key) for key in ("successfulJobsHistoryLimit", "failedJobsHistoryLimit")]
    keep = max((each for each in kept if each is not None), default=None)
    if kept[0] != kept[1] and None not in kept:
        spec.guess("failedJobsHistoryLimit", "the larger of the two history limits applies to all runs")
    return filled(
        cron=cron,
        timezone=zone,
        overlap=_OVERLAPS[policy],
        missed="run" if late is None or late > 60 else None,
        keep=None if keep is None or keep == _KEEP else min(keep, 100),
        paused=spec.flag("suspend") or None,
    )


def _job_spec(spec: Part, meta: ObjectMeta, pods: PodReader) -> tuple[Pod, dict[str, str], dict[str, Any]]:
    pod, labels = _template(spec, meta, pods)
    completions, parallelism = spec.whole("completions"), spec.whole("parallelism")
    if completions is None and (parallelism or 1) > 1:
        spec.guess("parallelism", "so many have to succeed: a queue that one of them finds empty is not known here")
        completions = parallelism
    if parallelism == 0:
        parallelism = None  # the job gets a gate
    retries = spec.whole("backoffLimitPerIndex", spec.whole("backoffLimit", _RETRIES)) or 0
    if retries > _RETRIES_MOST:
        spec.guess("backoffLimit", f"at most {_RETRIES_MOST}")
    drop_unusual(spec, _OF_JOBS)
    spec.flag("manualSelector")
    if spec.peek("selector"):
        _selector(spec, labels)
    indexed = spec.text("completionMode") == "Indexed"
    if indexed and not knows(Batch, "indexed"):
        spec.drop("completionMode", "is not supported yet")
        indexed = False
    for task in pod.tasks.values() if indexed else ():
        task["env"] = {"JOB_COMPLETION_INDEX": "${MANDOR_INDEX}", **task.get("env", {})}
    batch = filled(
        completions=completions,
        parallelism=parallelism,
        retries=min(max(0, retries), _RETRIES_MOST),
        deadline=duration(spec, "activeDeadlineSeconds") or pod.deadline,
        indexed=indexed or None,
    )
    return pod, labels, batch


_OF_JOBS: Unusual = {
    "ttlSecondsAfterFinished": ("a batch is kept until it is deleted", ()),
    "podFailurePolicy": ("every failure counts as an attempt", ()),
    "successPolicy": ("all instances must succeed", ()),
    "maxFailedIndexes": ("an instance that failed permanently ends the batch", ()),
    "podReplacementPolicy": ("a failed instance is replaced after it has ended", ("TerminatingOrFailed",)),
    "managedBy": ("has no counterpart", ()),
}


def _batch_form(pod: Pod, batch: dict[str, Any]) -> _Form:
    """Limit the retries: Kubernetes counts restarts in place and new pods towards one limit."""
    if pod.restart == "Never":
        return _Form(type="batch", workload={"batch": batch}, group={"restart": {"policy": "never"}})
    restart = {"policy": "on-failure", "attempts": batch["retries"]}
    return _Form(type="batch", workload={"batch": {**batch, "retries": 0}}, group={"restart": restart})


# All kinds.


def _made(part: Part, kind: str, meta: ObjectMeta, pod: Pod, labels: dict[str, str], form: _Form) -> Work:
    if not pod.tasks:
        raise part.wrong("spec", f"{kind} {meta.name} has no containers")
    name = fitting_name(meta.name or kind.lower(), most=form.name_most)
    if name != meta.name:
        part.part("metadata").guess("name", f"it is called {name} here")
    for key, value in meta.labels.items():
        if labels.setdefault(key, value) != value:
            part.part("metadata").guess("labels", f"{key} is {labels[key]!r}, the value of its pods")
    for owner in _described(part):
        labels = annotation_labels(owner, _LABELS_MOST - len(labels)) | labels
    head: dict[str, Any] = filled(
        name=name,
        namespace=meta.namespace or None,
        type=form.type,
        labels=renamed(labels),
        **pod.workload,
        **form.workload,
    )
    if form.gate is not None:
        head["gates"] = [*head.get("gates", ()), form.gate]
    group = filled(replicas=form.replicas, engine=list(pod.engines), **form.group)
    forms = pod.forms
    if "groups" in forms:
        forms = {"groups": {FLAT: {**group, **forms["groups"][FLAT]}}}
        group = {}
    manifest = {**head, **group, **forms}
    return Work(part, kind, meta.name, meta.namespace, labels, pod, manifest, form.replicas)


def _described(part: Part) -> list[Part]:
    """Return the places for annotations of a workload: its own and those of its template."""
    found, spec = [part], part.part("spec")
    if "jobTemplate" in spec:
        spec = spec.part("jobTemplate").part("spec")
    return [*found, spec.part("template")] if "template" in spec else found


Maker = Callable[[Part, str, ObjectMeta, PodReader], Work]
_KINDS: dict[str, Maker] = {
    "Pod": _pod,
    "Deployment": _service,
    "DeploymentConfig": _deployment_config,
    "ReplicaSet": _service,
    "ReplicationController": _service,
    "StatefulSet": _service,
    "DaemonSet": _service,
    "Job": _job,
    "CronJob": _cron,
}
WORK_KINDS = frozenset(_KINDS)
