"""Compose's `deploy` and its older forms: replicas, placement, resources, updates."""

import re
from typing import Any, get_args

from mandor.importers.base import filled
from mandor.importers.compose.amounts import seconds_of, take_cpu, take_seconds, take_size
from mandor.importers.compose.draft import Draft
from mandor.importers.compose.storage import labels_of
from mandor.importers.part import Part
from mandor.lib.quantity import Cpu, Seconds, Size
from mandor.model.workload import WorkloadType

FACTS = {
    "node.hostname": "node",
    "node.id": "node",
    "node.platform.os": "os",
    "node.platform.arch": "arch",
    "node.role": "role",
}
_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
_CONSTRAINT = re.compile(r"\s*(?P<fact>[\w.\-/]+)\s*(?P<op>==|!=)\s*(?P<value>.+?)\s*")
_WITHOUT_LIMIT = 10_000
"""Restarts in half an hour: more than there can be."""
_POLICY = {"none": "never", "on-failure": "on-failure", "any": "always", "unless-stopped": "always"}


def read_deploy(draft: Draft, service: Part) -> None:
    deploy = service.part("deploy")
    draft.labels |= labels_of(deploy, "labels")
    _count(draft, service, deploy)
    _placement(draft, deploy.part("placement"))
    _resources(draft, deploy.part("resources"))
    _older_resources(draft, service)
    _settle(draft)
    _restart(draft, service, deploy.part("restart_policy"))
    _update(draft, deploy.part("update_config"))
    _rollback(deploy.part("rollback_config"), deploy.part("update_config"))
    if (mode := deploy.text("endpoint_mode", "vip")) not in {"vip", "dnsrr"}:
        raise deploy.wrong("endpoint_mode", f"{str(mode)[:40]!r} is neither vip nor dnsrr")


def _count(draft: Draft, service: Part, deploy: Part) -> None:
    scale, count = service.whole("scale"), deploy.whole("replicas")
    replicas = count if count is not None else scale
    if count is not None and scale is not None and scale != count:
        raise service.wrong("scale", f"`deploy.replicas` is {count}")
    mode = deploy.text("mode", "replicated")
    if mode in {"global", "global-job"}:
        if "daemon" not in get_args(WorkloadType):
            deploy.drop("mode", "one on each node is not supported yet", "leave it out, and set `replicas`")
        else:
            draft.type = "daemon"
            if mode == "global-job":
                deploy.guess("mode", "it becomes a daemon, which does not end")
        return
    if mode == "replicated-job":
        draft.type = "batch"
        if replicas:
            draft.batch |= {"completions": replicas, "parallelism": replicas}
        return
    if mode != "replicated":
        raise deploy.wrong("mode", f"{mode!r} is none of replicated, global, replicated-job, global-job")
    if replicas is not None:
        draft.group["replicas"] = replicas


# Placement.


def _placement(draft: Draft, part: Part) -> None:
    for text in part.texts("constraints"):
        match = _CONSTRAINT.fullmatch(text)
        if match is None:
            raise part.wrong("constraints", f"{text[:60]!r} is not a constraint; write `node.labels.disk == ssd`")
        fact = fact_of(match["fact"])
        if fact is None:
            raise part.wrong("constraints", f"there is no {match['fact']!r}", "node.labels.NAME, node.hostname …")
        if fact == "role":
            part.guess(
                "constraints", "nodes have no role: the node label `role` is required", "mandor label NODE role=…"
            )
        value = _ARCH.get(match["value"], match["value"])
        draft.rule("where", rule=f"{fact} {match['op']} {value}")
    for each in part.parts("preferences"):
        fact = fact_of(each.text("spread", "") or "")
        if fact is None:
            each.drop("spread", "it names no known node attribute")
        else:
            draft.rule("spread", over=fact, strength="prefer")
    most = part.whole("max_replicas_per_node")
    if most == 1:
        draft.rule("apart", workload="self")
    elif most:
        draft.rule("spread", over="node")
        part.guess(
            "max_replicas_per_node", "instances are spread evenly over nodes; only the limit 1 per node is supported"
        )


def fact_of(name: str) -> str | None:
    for prefix in ("node.labels.", "engine.labels."):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return FACTS.get(name)


# Resources.


def _resources(draft: Draft, part: Part) -> None:
    limits, asked = part.part("limits"), part.part("reservations")
    draft.limits |= filled(
        cpu=take_cpu(limits, "cpus"), memory=take_size(limits, "memory"), processes=_positive(limits, "pids")
    )
    draft.requests |= filled(cpu=take_cpu(asked, "cpus"), memory=take_size(asked, "memory"))
    devices = [_device(each) for each in asked.parts("devices")]
    for each in asked.parts("generic_resources"):
        spec = each.part("discrete_resource_spec")
        devices.append({"kind": (spec.text("kind") or "").lower(), "count": spec.whole("value", 1)})
    if devices:
        draft.requests["devices"] = devices


def _device(part: Part) -> dict[str, Any]:
    capabilities = [text.lower() for text in part.texts("capabilities")]
    driver, count = part.text("driver"), part.text("count", "all")
    ids = part.texts("device_ids")
    part.drop("options", "devices have no options")
    kind = "gpu" if not capabilities or "gpu" in capabilities else capabilities[0]
    if ids:
        part.guess("device_ids", "the number is requested; the choice of devices is not")
    if count == "all" and not ids:
        part.guess("count" if "count" in part else "capabilities", "one device is requested: `all` has no counterpart")
    if ids and "count" in part:
        raise part.wrong("count", "`device_ids` also sets the count")
    number = len(ids) or (int(count) if count and count.isdecimal() else 1)
    if number < 1:
        raise part.wrong("count", "at least one device")
    vendor = driver if driver and driver not in {"cdi", "nvidia-cdi"} else None
    if driver == "cdi":
        part.guess("driver", "the engine decides how it gives devices")
    return filled(kind=kind, vendor=vendor, count=number)


def _older_resources(draft: Draft, service: Part) -> None:
    """Map the keys of version 2; `deploy` overrides them."""
    cores, quota = take_cpu(service, "cpus"), _quota(service)
    if cores and quota:
        service.guess("cpus", "`cpu_quota` counts")
    limits = filled(
        cpu=quota or cores, memory=take_size(service, "mem_limit"), processes=_positive(service, "pids_limit")
    )
    requests = filled(memory=take_size(service, "mem_reservation"))
    for key, older, newer, name in (
        ("cpus", limits, draft.limits, "cpu"),
        ("cpu_quota", limits, draft.limits, "cpu"),
        ("mem_limit", limits, draft.limits, "memory"),
        ("pids_limit", limits, draft.limits, "processes"),
        ("mem_reservation", requests, draft.requests, "memory"),
    ):
        if key in service and newer.get(name, older.get(name)) != older.get(name):
            service.guess(key, "`deploy.resources` overrides it")
    draft.limits, draft.requests = limits | draft.limits, requests | draft.requests
    gpus = service.peek("gpus")
    if gpus is not None:
        found = (
            [_device(each) for each in service.parts("gpus")]
            if isinstance(gpus, list)
            else [{"kind": "gpu", "count": _gpus(service)}]
        )
        draft.requests["devices"] = draft.requests.get("devices", []) + found


def _gpus(service: Part) -> int:
    text = service.text("gpus", "all") or "all"
    if not text.isdecimal():
        service.guess("gpus", "one device is requested: `all` has no counterpart")
        return 1
    return max(1, int(text))


def _quota(service: Part) -> str | None:
    quota, period = _microseconds(service, "cpu_quota"), _microseconds(service, "cpu_period") or 100_000.0
    return str(Cpu(max(1, round(1000 * quota / period)))) if quota and quota > 0 else None


def _microseconds(service: Part, key: str) -> float | None:
    """Return a number of microseconds, or a duration converted to it."""
    text = service.text(key)
    if not text or not text[-1].isalpha():
        return service.number(key)
    try:
        return seconds_of(text) * 1_000_000
    except ValueError as error:
        raise service.wrong(key, str(error)) from None


def _positive(part: Part, key: str) -> int | None:
    """Return a positive number, or None: Docker uses -1 or 0 for no limit."""
    found = part.whole(key)
    return found if found is not None and found > 0 else None


def _settle(draft: Draft) -> None:
    """Lower requests to their limits, as Docker does."""
    for key, kind in (("cpu", Cpu), ("memory", Size)):
        limit, asked = draft.limits.get(key), draft.requests.get(key)
        if limit is not None and asked is not None and kind.parse(asked) > kind.parse(limit):
            draft.requests[key] = limit


# Updates.


def _restart(draft: Draft, service: Part, policy: Part) -> None:
    word = service.text("restart")
    found: dict[str, Any] = {}
    if word:
        name, _, times = word.partition(":")
        if name not in {"no", "always", "on-failure", "unless-stopped", "false"}:
            raise service.wrong("restart", f"{word[:40]!r} is none of no, always, on-failure, unless-stopped")
        found["policy"] = {"no": "never", "false": "never", "unless-stopped": "always"}.get(name, name)
        if times:
            found["attempts"] = _times(service, times)
    if policy:
        if word:
            service.guess("restart", "`deploy.restart_policy` overrides it")
        condition = policy.text("condition", "any") or "any"
        if condition not in _POLICY:
            raise policy.wrong("condition", f"{condition[:40]!r} is none of none, on-failure, any, unless-stopped")
        found = filled(
            policy=_POLICY[condition],
            attempts=policy.whole("max_attempts"),
            delay=take_seconds(policy, "delay"),
            interval=take_seconds(policy, "window"),
        )
        delay = found.get("delay")
        if delay is not None and Seconds.parse(delay) > 300:
            found["max_delay"] = delay
    if draft.type is None:
        _stay_ended(draft, found)
    if draft.type == "batch" and found.get("policy") == "always":
        found["policy"] = "on-failure"
    if found:
        draft.group["restart"] = found


def _stay_ended(draft: Draft, found: dict[str, Any]) -> None:
    """Keep a service ended when Compose does: by default, and after its restarts on failure."""
    found.setdefault("policy", "never")
    if found["policy"] == "on-failure":
        found.setdefault("attempts", _WITHOUT_LIMIT)
    if found["policy"] != "always":
        draft.group["reschedule"] = {"attempts": 0}


def _times(service: Part, text: str) -> int:
    if not text.isdecimal():
        raise service.wrong("restart", f"{text[:20]!r} is no number of attempts")
    return int(text)


def _update(draft: Draft, part: Part) -> None:
    if not part:
        return
    at_once, order = part.whole("parallelism", 1), part.text("order", "stop-first")
    if order not in {"stop-first", "start-first"}:
        raise part.wrong("order", f"{order!r} is neither stop-first nor start-first")
    share: int | str = at_once or "100%"
    action, watched = part.text("failure_action", "pause"), take_seconds(part, "monitor")
    pause = take_seconds(part, "delay")
    if pause is not None and Seconds.parse(pause) > (Seconds.parse(watched) if watched else 10):
        part.guess("delay", "the next instances follow when the previous ones have been healthy for this time")
        part.guess("monitor", "`delay` is longer and is used")
        watched = pause
    elif pause is not None and Seconds.parse(pause) > 0:
        part.guess("delay", "the next instances follow when the previous ones have been healthy for `monitor`")
    part.drop("max_failure_ratio", "one instance that does not become available fails a roll-out")
    if action == "continue":
        part.guess("failure_action", "a failed roll-out stops")
    draft.group["update"] = filled(
        order=order,
        max_surge=share if order == "start-first" else None,
        max_unavailable=share if order == "stop-first" else None,
        min_healthy=watched,
        deadline=str(Seconds(2 * Seconds.parse(watched))) if watched and Seconds.parse(watched) >= 300 else None,
    ) | {"auto_rollback": action == "rollback"}


def _rollback(part: Part, update: Part) -> None:
    """Note rollback settings that differ from those of the update: Mandor rolls back as it updates."""
    for key in part:
        if key in update and part.peek(key) == update.peek(key):
            part.take(key)
        else:
            part.drop(key, "a rollback uses the settings of the update")
