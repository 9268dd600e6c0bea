"""What happens now to an object, and what a person can do about it, in a sentence each."""

from collections.abc import Sequence
from typing import Any, NamedTuple

Object = dict[str, Any]


class Advice(NamedTuple):
    now: str
    """What happens; empty: nothing that needs to be told."""
    do: str = ""
    """What can be done about it; empty: nothing has to be."""


NOTHING = Advice("")


def of_instance(item: Object) -> Advice:
    spec, status = item["spec"], item.get("status", {})
    phase, said = status.get("phase", "Pending"), _said(status)
    if spec.get("stop"):
        return Advice(f"it was told to stop: {spec['stop']['reason']}")
    if phase == "Pending":
        return _of_pending(item, said)
    if phase in {"Starting", "Reserved", "Running"} and not status.get("ready"):
        return _of_unready(item, said)
    if phase == "Running" and spec.get("move"):
        return Advice(f"it moves to {spec['move'].get('to', 'another node')}: {spec['move'].get('reason', '')}")
    if phase == "Running" and spec.get("relaxed"):
        rules = ", ".join(f"`{rule}`" for rule in spec["relaxed"])
        return Advice(
            f"it runs without {rules}, and moves when that can be kept", f"{_explain(item)} tells why not now"
        )
    if phase == "Lost":
        return Advice(f"its node {spec.get('node', '')} is silent; another one takes its place")
    if phase == "Failed":
        return Advice(f"it failed: {said}", f"{_logs(item)} shows what it said")
    return NOTHING


def _of_pending(item: Object, said: str) -> Advice:
    status, where = item["status"], _flags(item)
    if status.get("nominated"):
        return Advice(f"room is being made for it on {status['nominated']}; it starts when that is free")
    if status.get("reason") == "Gated":
        return Advice(said or "it waits for somebody to open its gate", "nothing: it goes on by itself once that is so")
    if " Quota (" in said:
        held = f"`mandor get quotas{where}` shows what is left: raise the quota, or scale something down"
        return Advice(f"it waits for room in its namespace: {said}", held)
    if not said:
        return Advice("it waits for its turn with the scheduler")
    return Advice(f"it waits for a node: {said}", f"{_explain(item)} tells who said no, and the least that would help")


def _of_unready(item: Object, said: str) -> Advice:
    status = item["status"]
    reason, restarts = status.get("reason", ""), status.get("restarts", 0)
    if reason == "OOMKilled":
        more = "give it more `resources.memory` (and `limits.memory`), or make it use less"
        return Advice(f"it used more memory than it may, {_times(restarts)}: {said}", f"{more}; {_logs(item)}")
    if restarts:
        return Advice(f"it ended again and again, {_times(restarts)}: {said}", f"{_logs(item)} shows what it said")
    if status.get("phase") == "Running":
        return Advice(f"it runs and is not ready yet{f': {said}' if said else ''}", f"{_logs(item)} shows what it says")
    return Advice(said)


def of_workload(item: Object, instances: Sequence[Object]) -> Advice:
    """Of what holds it up most: its roll-out, else the first of its instances that is not well."""
    name, rollout = item["meta"]["name"], item["status"].get("rollout") or {}
    flags, phase = _flags(item), rollout.get("phase", "Done")
    said = rollout.get("message", "")
    if phase == "Paused":
        return Advice(f"its roll-out is paused: {said}", f"`mandor rollout resume {name}{flags}` goes on with it")
    if phase == "Promoting" or "promote" in said:
        both = f"`mandor rollout promote {name}{flags}` if it is good, `mandor rollout abort {name}{flags}` if not"
        return Advice(said, both)
    if phase in {"Failed", "RolledBack"}:
        return Advice(f"its roll-out came to nothing: {said}", "mend what is said, and apply again")
    for each in instances:
        found = of_instance(each)
        if found.now and not each.get("status", {}).get("ready"):
            older = phase == "Progressing" and any(
                known != rollout.get("release") for known in rollout.get("proven", ())
            )
            back = f"`mandor rollout abort {name}{flags}` goes back at once" if older else ""
            return Advice(f"{each['meta']['name']}: {found.now}", "; ".join(filter(None, [found.do, back])))
    return NOTHING


def of_node(item: Object) -> Advice:
    name, spec, status = item["meta"]["name"], item["spec"], item.get("status", {})
    phase = status.get("phase", "")
    if phase in {"Down", "Suspect", "Unknown"}:
        return Advice(
            f"its agent is silent: {status.get('reason', '')}".rstrip(": "),
            "look at the agent on that machine (`journalctl -u mandor-agent`); its instances are replaced elsewhere",
        )
    drain = status.get("drain")
    if status.get("maintenance"):
        return Advice(
            "its turn in the maintenance window: it is emptied, and takes work again by itself",
            f"nothing; `mandor uncordon {name}` ends its turn",
        )
    if drain and drain["phase"] == "Drained":
        return Advice("it is empty", f"`mandor uncordon {name}` when it may take work again")
    if drain and drain.get("waiting"):
        held = "; ".join(drain["waiting"])
        return Advice(
            f"its drain waits: {held}", f"nothing, if it may take its time; `mandor drain {name} --force` asks nobody"
        )
    if drain:
        return Advice("its work moves elsewhere", f"`mandor drain {name} --cancel` calls it off")
    if spec.get("cordoned"):
        return Advice("nothing new is placed there", f"`mandor uncordon {name}` when it may take work again")
    if status.get("pressure"):
        short = " and ".join(status["pressure"])
        return Advice(f"it is short of {short}: it takes nothing of low priority, and ends what uses too much")
    return NOTHING


def of_pool(item: Object) -> Advice:
    scaling, status = item["spec"].get("autoscale"), (item.get("status") or {}).get("scaling") or {}
    if not scaling:
        return NOTHING
    if status.get("trouble"):
        return Advice(status.get("message", ""), "mend what the provisioner says; it is tried again by itself")
    if "maximum" in status.get("message", ""):
        return Advice(f"work waits, and {status['message']}", "raise `autoscale.max`, if it may have more")
    return Advice(status.get("message", ""))


def _said(status: Object) -> str:
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
