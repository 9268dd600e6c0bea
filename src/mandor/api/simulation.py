"""Scenarios for `mandor simulate` from the current cluster and a change to it."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from mandor.errors import Invalid
from mandor.lib.yaml12 import List, Malformed, Map, dump, load_all
from mandor.model.codec import to_plain
from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.node import Node, NodePhase, NodeSpec
from mandor.model.recording import KINDS as DETERMINE_PLACEMENT
from mandor.model.volume import HOST_PATHS, Volume
from mandor.model.workload import Workload

SETTLE_SECONDS = 120
"""Simulated time in which the existing workloads are placed before the change is applied."""
BOOT = "boot"
KINDS = sorted(DETERMINE_PLACEMENT - {Instance.kind})
"""Kinds of the cluster that a simulation starts with; instances are placed again."""


def scenario_of(cluster: Sequence[Object], change: Iterable[Object], *, seconds: int) -> str:
    """Return a scenario: ready nodes with the existing workloads, then the change, then `seconds` of simulated time."""
    nodes = [each for each in cluster if isinstance(each, Node) and each.status.phase is NodePhase.READY]
    if not nodes:
        raise Invalid("no node is ready to simulate", hint="send a scenario that defines its own nodes")
    named = _named_volumes(cluster)
    there = [_in_place(each) for each in cluster if _submitted(each, named)]
    there.sort(key=lambda each: (isinstance(each, Workload), each.meta.created_at))
    changed = [each for each in nodes if each.spec != NodeSpec()]
    timeline = [
        {"at": "0s", "phase": "as it is"},
        {"at": f"{SETTLE_SECONDS}s", "phase": "with the change", "submit": [_manifest(each) for each in change]},
    ]
    return dump(
        {
            "name": "the cluster as it is, and a change",
            "nodes": [_node(each) for each in nodes],
            "workloads": [_manifest(each) for each in (*changed, *there)],
            "stored": True,
            "timeline": timeline,
            "end": f"{SETTLE_SECONDS + seconds}s",
        }
    )


def _submitted(value: Object, volumes: Collection[str]) -> bool:
    """Return whether users wrote the object; controllers of the simulation make the others again."""
    if isinstance(value, Workload):
        return not value.spec.run_of
    if isinstance(value, Volume):
        return bool(value.status.node) or value.meta.name in volumes
    return not isinstance(value, Node | Instance)


def _in_place(value: Object) -> Object:
    """Return a volume that has its data on a node as one that may be on no other node."""
    if not isinstance(value, Volume) or not value.status.node:
        return value
    return value.changed(spec=msgspec.structs.replace(value.spec, node=value.status.node))


def _named_volumes(cluster: Iterable[Object]) -> set[str]:
    """Return the volumes that workloads refer to by name; others are made with their instances."""
    groups = (group for each in cluster if isinstance(each, Workload) for group in each.spec.groups.values())
    return {each.volume for group in groups for each in group.volumes.values() if each.volume is not None}


def _manifest(value: Object) -> dict[str, Any]:
    """Return the object as a manifest."""
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
        "facts": {key: text for key, text in node.status.facts.items() if key not in {BOOT, HOST_PATHS}},
        "host_paths": [each for each in node.status.facts.get(HOST_PATHS, "").split(",") if each],
        "pool": node.spec.pool,
        "engines": sorted(node.status.engines),
    }


def scenario_in(text: str) -> bool:
    """Return whether a text is a scenario rather than a manifest; raise `Invalid` if it names files."""
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
    """Raise `Invalid` if a scenario names files, which would be files of the server."""
    steps = [each for each in _list(scenario.get("timeline")) if isinstance(each, Map)]
    for part in (scenario.get("workloads"), *(each.get("submit") for each in steps)):
        for entry in _list(part):
            if isinstance(entry, Map) and "file" in entry:
                hint = "put the manifest into the scenario, or run `mandor simulate` on the machine that has the files"
                raise Invalid("a scenario for a server must not name files", hint=hint, line=entry.lines.get("file"))
    strategies = scenario.get("strategies")
    for strategy in strategies.values() if isinstance(strategies, Map) else ():
        if isinstance(strategy, Map) and "profile" in strategy:
            hint = "run `mandor simulate` on the machine that has the file"
            raise Invalid("a scenario for a server must not name files", hint=hint, line=strategy.lines.get("profile"))


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, List) else [value]
