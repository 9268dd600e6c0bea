"""The cluster as it is, and a change to it, as a scenario that `mandor simulate` runs."""

from collections.abc import Iterable, Sequence
from typing import Any

from mandor.errors import Invalid
from mandor.lib.yaml12 import List, Malformed, Map, dump, load_all
from mandor.model.codec import to_plain
from mandor.model.meta import Object
from mandor.model.node import Node, NodePhase, NodeSpec
from mandor.model.priority import PriorityClass
from mandor.model.workload import Workload

SETTLE_SECONDS = 120
"""What is there already is given so long to find its place, before the change comes."""
BOOT = "boot"


def scenario_of(cluster: Sequence[Object], change: Iterable[Object], *, seconds: int) -> str:
    """A scenario: the nodes that are ready with the work that there is, then the change, then so many seconds."""
    nodes = [each for each in cluster if isinstance(each, Node) and each.status.phase is NodePhase.READY]
    if not nodes:
        raise Invalid("no node is ready, so nothing can be simulated", hint="give a scenario with nodes of its own")
    there = sorted(filter(_counts, cluster), key=lambda each: (isinstance(each, Workload), each.meta.created_at))
    told = [each for each in nodes if each.spec != NodeSpec()]
    timeline = [
        {"at": "0s", "phase": "as it is"},
        {"at": f"{SETTLE_SECONDS}s", "phase": "with the change", "submit": [_manifest(each) for each in change]},
    ]
    return dump(
        {
            "name": "the cluster as it is, and a change",
            "nodes": [_node(each) for each in nodes],
            "workloads": [_manifest(each) for each in (*told, *there)],
            "timeline": timeline,
            "end": f"{SETTLE_SECONDS + seconds}s",
        }
    )


def _counts(value: Object) -> bool:
    return isinstance(value, PriorityClass) or (isinstance(value, Workload) and not value.spec.run_of)


def _manifest(value: Object) -> dict[str, Any]:
    """As somebody would write it."""
    meta = {"name": value.meta.name, "namespace": value.meta.namespace, "labels": dict(value.meta.labels)}
    plain = to_plain(value)
    return {"kind": value.kind, "meta": {key: each for key, each in meta.items() if each}, "spec": plain["spec"]}


def _node(node: Node) -> dict[str, Any]:
    has, reserved = node.status.capacity, node.spec.reserved
    return {
        "name": node.meta.name,
        "cpu": f"{has.cpu_milli}m",
        "memory": has.memory_bytes,
        "disk": has.disk_bytes,
        "devices": dict(has.devices),
        "reserved": {"cpu": f"{reserved.cpu_milli}m", "memory": reserved.memory_bytes, "disk": reserved.disk_bytes},
        "labels": dict(node.meta.labels),
        "facts": {key: text for key, text in node.status.facts.items() if key != BOOT},
        "pool": node.spec.pool,
        "engines": sorted(node.status.engines),
    }


def scenario_in(text: str) -> bool:
    """Whether this is a scenario, and no manifest; `Invalid` if it wants files of the server."""
    try:
        documents = load_all(text)
    except Malformed:
        return False
    found = documents[0].value if len(documents) == 1 else None
    if not isinstance(found, Map) or "nodes" not in found or not found.keys() & {"end", "timeline"}:
        return False
    _check_contained(found)
    return True


def _check_contained(scenario: Map) -> None:
    """The server's files are not the caller's business."""
    happenings = [each for each in _list(scenario.get("timeline")) if isinstance(each, Map)]
    for part in (scenario.get("workloads"), *(each.get("submit") for each in happenings)):
        for entry in _list(part):
            if isinstance(entry, Map) and "file" in entry:
                hint = "write the manifest itself there, or run `mandor simulate` beside the files"
                raise Invalid("a scenario that is sent names no files", hint=hint, line=entry.lines.get("file"))
    strategies = scenario.get("strategies")
    for strategy in strategies.values() if isinstance(strategies, Map) else ():
        if isinstance(strategy, Map) and "profile" in strategy:
            hint = "`mandor simulate` runs beside the file"
            raise Invalid("a scenario that is sent names no files", hint=hint, line=strategy.lines.get("profile"))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, List) else [value]
