"""Nodes, workloads and instances for tests, in a few words."""

from __future__ import annotations

from typing import Any

from mandor.model.codec import from_plain
from mandor.model.group import FLAT, Group, GroupTemplate
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, StopOrder, instance_name
from mandor.model.meta import Meta
from mandor.model.node import USUAL_PORTS, Capabilities, Node, NodePhase, NodeSpec, NodeStatus, PortRange, Taint
from mandor.model.phase import Phase
from mandor.model.priority import PriorityClass, PriorityClassSpec
from mandor.model.resources import Resources
from mandor.model.workload import Release, Workload, WorkloadSpec, make_release

GI = 1024**3
MI = 1024**2
NOW = 1_000_000.0
PROCESS = {"process": Capabilities(version="1")}
DOCKER = {"docker": Capabilities(version="27", images=True)}


def make_node(
    name: str,
    *,
    cpu: float = 4,
    memory: int = 8 * GI,
    disk: int = 100 * GI,
    devices: dict[str, int] | None = None,
    phase: NodePhase = NodePhase.READY,
    cordoned: bool = False,
    pool: str = "default",
    taints: tuple[Taint, ...] = (),
    engines: dict[str, Capabilities] | None = None,
    labels: dict[str, str] | None = None,
    facts: dict[str, str] | None = None,
    version: int = 0,
    reserved: Resources | None = None,
    ports: PortRange = USUAL_PORTS,
) -> Node:
    return Node(
        meta=Meta(name=name, labels=labels or {}, version=version),
        spec=NodeSpec(pool=pool, cordoned=cordoned, taints=taints, reserved=reserved or Resources()),
        status=NodeStatus(
            phase=phase,
            capacity=Resources(int(cpu * 1000), memory, disk, devices or {}),
            engines=PROCESS if engines is None else engines,
            facts=facts or {},
            ports=ports,
        ),
    )


def make_template(**fields: Any) -> GroupTemplate:
    """A group of one task; `cpu` and `memory` are its request, `image` makes it an image."""
    return from_plain(_group(fields), GroupTemplate)


def make_group(**fields: Any) -> Group:
    return from_plain(_group(fields), Group)


def _group(fields: dict[str, Any]) -> dict[str, Any]:
    resources = {key: fields.pop(key) for key in ("cpu", "memory", "disk") if key in fields}
    task: dict[str, Any] = {"image": fields.pop("image")} if "image" in fields else {"command": ["run"]}
    if resources:
        task["resources"] = resources
    if "env" in fields:
        task["env"] = fields.pop("env")
    if "where" in fields:
        fields["placement"] = {"where": fields.pop("where")}
    return {"tasks": {"main": task}, **fields}


def make_workload(name: str = "web", *, version: int = 1, **fields: Any) -> Workload:
    """A flat workload; `type`, `batch`, `priority`, `restarted` are its own, the rest is its group's."""
    mine = ("type", "batch", "priority", "restarted", "profile", "gates")
    own = {key: fields.pop(key) for key in mine if key in fields}
    spec = from_plain({**own, "groups": {FLAT: _group(fields)}}, WorkloadSpec)
    return Workload(meta=Meta(name=name, namespace="default", uid=f"uid-{name}", version=version), spec=spec)


def make_class(name: str, value: int, **fields: Any) -> PriorityClass:
    return PriorityClass(meta=Meta(name=name), spec=PriorityClassSpec(value=value, **fields))


def make_stored_release(workload: Workload, sequence: int = 1, *, created_at: float = NOW) -> Release:
    made = make_release(workload, sequence)
    return made.stamped(version=sequence, uid=f"uid-{made.meta.name}", created_at=created_at)


def make_instance(
    index: int = 0,
    phase: Phase = Phase.RUNNING,
    *,
    workload: str = "web",
    group: str = FLAT,
    release: str = "web.1",
    node: str | None = None,
    stop: str = "",
    attempt: int = 0,
    avoid: tuple[str, ...] = (),
    ready: bool | None = None,
    reason: str = "",
    message: str = "",
    since: float = NOW,
    started_at: float = 0.0,
    exit_code: int | None = None,
    version: int = 1,
    created_at: float = NOW,
) -> Instance:
    """Placed on n1 unless it is Pending."""
    where = node if node is not None else ("" if phase is Phase.PENDING else "n1")
    name = instance_name(workload, group, index)
    return Instance(
        meta=Meta(name=name, namespace="default", uid=f"uid-{name}-{version}", version=version, created_at=created_at),
        spec=InstanceSpec(
            workload=workload,
            group=group,
            release=release,
            index=index,
            node=where,
            stop=StopOrder(reason=stop) if stop else None,
            attempt=attempt,
            avoid=avoid,
        ),
        status=InstanceStatus(
            phase=phase,
            ready=phase is Phase.RUNNING if ready is None else ready,
            reason=reason,
            message=message,
            since=since,
            started_at=started_at,
            exit_code=exit_code,
        ),
    )
