"""Advice for `describe` and `top`: the current state of an object in a sentence, and the next step for the user."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]


class Advice(NamedTuple):
    now: str
    """Current state; empty if there is nothing to report."""
    do: str = ""
    """Next step for the user; empty if none is needed."""


NOTHING = Advice("")


def of_instance(item: Object) -> Advice:
    spec, status = item["spec"], item.get("status", {})
    phase, message = status.get("phase", "Pending"), _message(status)
    if spec.get("stop"):
        return Advice(f"stopping: {spec['stop']['reason']}")
    if phase == "Pending":
        return _of_pending(item, message)
    if phase in {"Starting", "Reserved", "Running"} and not status.get("ready"):
        return _of_unready(item, message)
    if phase == "Running" and spec.get("move"):
        return Advice(f"moving to {spec['move'].get('to', 'another node')}: {spec['move'].get('reason', '')}")
    if phase == "Running" and spec.get("relaxed"):
        rules = ", ".join(f"`{rule}`" for rule in spec["relaxed"])
        return Advice(
            f"placed without {rules}; moves when the rule can be satisfied", f"{_explain(item)} shows why not now"
        )
    if phase == "Lost":
        return Advice(f"its node {spec.get('node', '')} sends no heartbeats; a replacement is started")
    if phase == "Failed":
        return Advice(f"failed: {message}", f"see {_logs(item)}")
    return NOTHING


def _of_pending(item: Object, message: str) -> Advice:
    status, where = item["status"], _flags(item)
    if status.get("nominated"):
        return Advice(f"room is being made on {status['nominated']} by preemption; starts when it is free")
    if status.get("reason") == "Gated":
        return Advice(
            message or "waiting for a scheduling gate to be removed", "none: continues once the gate is removed"
        )
    if " Quota (" in message:
        held = f"raise the quota or scale something down; `mandor get quotas{where}` shows what is left"
        return Advice(f"waiting for quota of its namespace: {message}", held)
    if not message:
        return Advice("waiting for the scheduler")
    return Advice(
        f"waiting for a node: {message}", f"{_explain(item)} shows the reasons and the smallest change that helps"
    )


def _of_unready(item: Object, message: str) -> Advice:
    status = item["status"]
    reason, restarts = status.get("reason", ""), status.get("restarts", 0)
    if reason == "OOMKilled":
        more = "raise `resources.memory` (and `limits.memory`), or reduce its memory usage"
        return Advice(f"killed for using too much memory, {_times(restarts)}: {message}", f"{more}; see {_logs(item)}")
    if restarts:
        return Advice(f"restarted {_times(restarts)}: {message}", f"see {_logs(item)}")
    if status.get("phase") == "Running":
        return Advice(f"running but not ready yet{f': {message}' if message else ''}", f"see {_logs(item)}")
    return Advice(message)


def of_workload(item: Object, instances: Sequence[Object]) -> Advice:
    """Return advice about the rollout if it needs attention, else about the first instance that is not ready."""
    name, rollout = item["meta"]["name"], item["status"].get("rollout") or {}
    flags, phase = _flags(item), rollout.get("phase", "Done")
    message = rollout.get("message", "")
    if phase == "Paused":
        return Advice(f"rollout paused: {message}", f"continue it with `mandor rollout resume {name}{flags}`")
    if phase == "Promoting" or "promote" in message:
        both = f"`mandor rollout promote {name}{flags}` to continue, `mandor rollout abort {name}{flags}` to go back"
        return Advice(message, both)
    if phase in {"Failed", "RolledBack"}:
        return Advice(f"rollout failed: {message}", "fix the error above and apply again")
    for each in instances:
        found = of_instance(each)
        if found.now and not each.get("status", {}).get("ready"):
            older = phase == "Progressing" and any(
                known != rollout.get("release") for known in rollout.get("proven", ())
            )
            back = f"`mandor rollout abort {name}{flags}` returns to the previous release" if older else ""
            return Advice(f"{each['meta']['name']}: {found.now}", "; ".join(filter(None, [found.do, back])))
    return NOTHING


def of_node(item: Object) -> Advice:
    name, spec, status = item["meta"]["name"], item["spec"], item.get("status", {})
    phase = status.get("phase", "")
    if phase in {"Down", "Suspect", "Unknown"}:
        return Advice(
            f"no heartbeats from its agent: {status.get('reason', '')}".rstrip(": "),
            "check the agent on that machine (`journalctl -u mandor-agent`); its instances are replaced on other nodes",
        )
    drain = status.get("drain")
    if status.get("maintenance"):
        return Advice(
            "in its pool's maintenance window: it is drained, and reopened automatically",
            f"none; `mandor uncordon {name}` ends its turn now",
        )
    if drain and drain["phase"] == "Drained":
        return Advice("drained: no instances are left", f"`mandor uncordon {name}` to place instances on it again")
    if drain and drain.get("waiting"):
        held = "; ".join(drain["waiting"])
        return Advice(
            f"the drain is waiting: {held}",
            f"none, if there is time; `mandor drain {name} --force` ignores disruption budgets",
        )
    if drain:
        return Advice("draining: its instances are being moved", f"`mandor drain {name} --cancel` stops the drain")
    if spec.get("cordoned"):
        return Advice("cordoned: no new instances are placed on it", f"`mandor uncordon {name}` to reopen it")
    if status.get("pressure"):
        short = " and ".join(status["pressure"])
        return Advice(f"short of {short}: only instances that tolerate this are placed on it; it evicts others")
    return NOTHING


AGAIN = "orders are retried automatically"


def of_pool(item: Object) -> Advice:
    scaling, status = item["spec"].get("autoscale"), (item.get("status") or {}).get("scaling") or {}
    if not scaling:
        return NOTHING
    if status.get("trouble"):
        fix = f"correct the pool's `settings` or the provisioner, and apply it again; {AGAIN}"
        return Advice(status.get("message", ""), fix)
    stuck = [each["id"] for each in status.get("machines", ()) if each.get("phase") == "Leaving"]
    if stuck and "cannot be deleted" in status.get("message", ""):
        gone = f"`mandor pool forget {item['meta']['name']}` removes the records of machines that do not exist"
        return Advice(status["message"], f"check the provisioner; {gone}")
    if "maximum" in status.get("message", ""):
        return Advice(f"instances are waiting: {status['message']}", "raise `autoscale.max` to allow more machines")
    return Advice(status.get("message", ""))


def _message(status: Object) -> str:
    return " ".join(str(status.get("message") or status.get("reason") or "").split())


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _flags(item: Object) -> str:
    namespace = item["meta"].get("namespace", "default")
    return "" if namespace == "default" else f" -n {namespace}"


def _explain(item: Object) -> str:
    return f"`mandor explain instance {item['meta']['name']}{_flags(item)}`"


def _logs(item: Object) -> str:
    return f"`mandor logs {item['meta']['name']}{_flags(item)}`"
