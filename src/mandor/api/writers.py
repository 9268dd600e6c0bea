"""One writer per field: which identity may change which field of which kind."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from mandor.api.caller import Caller
from mandor.errors import Forbidden, Invalid
from mandor.model.codec import KINDS
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.limit_defaults import LimitDefaults
from mandor.model.meta import Object
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.phase import Phase, may_move
from mandor.model.quota import Quota
from mandor.model.record import Event
from mandor.model.reservation import Reservation
from mandor.model.workload import Workload, WorkloadStatus

EXISTENCE = "existence"
"""Creating, deleting, or putting another object in its place."""

_BOUNDS = frozenset({Quota.kind, LimitDefaults.kind, Reservation.kind})
"""Nobody sets the bounds of his own namespace: an admin of the whole cluster does."""

Fields = frozenset[str]
Rights = Mapping[str, Fields]

_OPERATOR: Rights = {
    "workload": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "instance": frozenset({"spec.stop"}),
    "node": frozenset({"meta.labels", "spec"}),
    "volume": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "rebalance": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "secret": frozenset({EXISTENCE, "meta.labels", "spec"}),
}
_ADMIN: Rights = {
    **_OPERATOR,
    "node": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "namespace": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "priority-class": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "quota": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "limit-defaults": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "node-pool": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "reservation": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "webhook": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "event-bus": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "log-sink": frozenset({EXISTENCE, "meta.labels", "spec"}),
}
_OWN_NODE_STATUS = frozenset(
    f"status.{name}"
    for name in (
        *("address", "capacity", "engines", "facts", "agent_version", "images", "ports", "usage", "pressure"),
        "log_sinks",
    )
)
_NODE: Rights = {
    "node": _OWN_NODE_STATUS,
    "volume": frozenset({"status.path"}),
    "instance": frozenset({"status"}),
    "event": frozenset({EXISTENCE, "meta.labels", "spec"}),
}
_SCHEDULER: Rights = {
    "instance": frozenset(
        {f"spec.{name}" for name in ("node", "variant", "volumes", "ports", "relaxed", "stop")}
        | {"meta.trace", "status"}
    ),
    "volume": frozenset({EXISTENCE, "spec", "status.node", "status.workload"}),
    "decision": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "event": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "lease": frozenset({EXISTENCE, "spec"}),
}
_CONTROLLERS: Rights = {
    "volume": frozenset({EXISTENCE, "status"}),
    "workload": frozenset(
        {EXISTENCE, "meta.labels", "meta.trace", "spec", "status"}
    ),  # the runs of a schedule, and counts
    "quota": frozenset({"status"}),
    "node-pool": frozenset({"status"}),
    "rebalance": frozenset({"status"}),
    "reservation": frozenset({"status"}),
    "webhook": frozenset({"status"}),
    "event-bus": frozenset({"status"}),
    "task": frozenset({EXISTENCE, "meta.labels", "spec", "status"}),
    "spare": frozenset({EXISTENCE, "meta.labels", "spec", "status"}),
    "inventory": frozenset({EXISTENCE, "meta.labels", "spec", "status"}),
    "release": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "instance": frozenset(
        {EXISTENCE, "meta.labels", "meta.trace", "status"}
        | {f"spec.{name}" for name in ("workload", "group", "release", "index", "stop", "attempt")}
        | {f"spec.{name}" for name in ("pin", "avoid", "move", "instead_of", "claim")}
    ),
    "node": frozenset(f"status.{name}" for name in ("phase", "reason", "since", "drain", "maintenance"))
    | {EXISTENCE, "spec.drain"},  # machines that were ordered are drained and given back
    "event": frozenset({EXISTENCE, "meta.labels", "spec"}),
    "decision": frozenset({EXISTENCE}),
    "audit": frozenset({EXISTENCE}),
    "token": frozenset({EXISTENCE}),
    "session": frozenset({EXISTENCE}),
    "lease": frozenset({EXISTENCE, "spec"}),
    "hearing": frozenset({EXISTENCE}),
    "server": frozenset({EXISTENCE}),
    "tally": frozenset({EXISTENCE}),
}
_EVERYTHING: Rights = {kind: frozenset({EXISTENCE, "meta.labels", "meta.trace", "spec", "status"}) for kind in KINDS}

_FIRST: Mapping[type[msgspec.Struct], dict[str, Any]] = {
    InstanceStatus: {"phase": Phase.PENDING},
    NodeStatus: {"phase": NodePhase.UNKNOWN},
    WorkloadStatus: {"phase": "Pending"},
}

_COMPONENTS: Mapping[str, Rights] = {"component:scheduler": _SCHEDULER, "component:controllers": _CONTROLLERS}
"""Components with a name of their own write only their fields; any other stands for the whole control plane."""


def rights_of(caller: Caller) -> Rights:
    if caller.role == "component":
        return _COMPONENTS.get(caller.identity, _EVERYTHING)
    rights: Mapping[str, Rights] = {"admin": _ADMIN, "operator": _OPERATOR, "node": _NODE}
    return rights.get(caller.role, {})


def check_kind(caller: Caller, kind: str) -> None:
    """Raise `Forbidden` if the caller writes nothing of this kind, whatever it is."""
    if kind not in rights_of(caller):
        raise Forbidden(f"{caller.identity} ({caller.role}) may not write {KINDS[kind].plural}", role=caller.role)


def check_write(caller: Caller, before: Object | None, after: Object | None) -> None:
    """Raise `Forbidden`, with the field, unless every field that changes is the caller's to write."""
    value = after if after is not None else before
    assert value is not None
    if caller.user and not caller.sees(value.meta.namespace) and not (not value.meta.namespace and caller.everywhere):
        raise Forbidden(f"{caller.identity} may not write {value.key}", hint="the token is for other namespaces")
    if caller.user and value.kind in _BOUNDS:
        caller.require("admin", what=f"write {value.plural}")
    allowed = rights_of(caller).get(value.kind, frozenset())
    for field in changed_fields(before, after):
        if field not in allowed and field.partition(".")[0] not in allowed:
            what = _verb(before, after) if field == EXISTENCE else f"write {field} of"
            raise Forbidden(
                f"{caller.identity} ({caller.role}) may not {what} {value.key}",
                hint=_hint(value.kind, field),
                field=field,
                key=value.key,
            )
    if caller.role == "node":
        _check_node(caller, before, after, value)
    if caller.identity == "component:scheduler" and isinstance(before, Instance) and isinstance(after, Instance):
        _check_bind(before, after)
    if caller.identity == "component:controllers" and isinstance(after, Node) and not after.meta.uid:
        raise Forbidden(f"{value.key} is not made by controllers: a node joins", field=EXISTENCE, key=value.key)
    if caller.identity == "component:controllers" and isinstance(value, Workload):
        _check_run(before, after, value)


def changed_fields(before: Object | None, after: Object | None) -> list[str]:
    """`existence`, `meta.labels`, `spec.node`, `status.phase` …, in the order of the fields."""
    if after is None:
        return [EXISTENCE]
    base = before
    found = []
    if before is None or not after.meta.uid:
        found.append(EXISTENCE)
        base = None
    if after.meta.labels != (base.meta.labels if base is not None else {}):
        found.append("meta.labels")
    if after.meta.trace != (base.meta.trace if base is not None else None):
        found.append("meta.trace")
    for part in ("spec", "status"):
        new = getattr(after, part)
        old = getattr(base, part) if base is not None else None
        if old != new:
            found += [f"{part}.{name}" for name in new.__struct_fields__ if _differs(type(new), old, new, name)]
    return found


def _differs(kind: type[msgspec.Struct], old: Any, new: Any, name: str) -> bool:
    value = getattr(new, name)
    if old is not None:
        return bool(getattr(old, name) != value)
    return name not in _defaults(kind) or bool(_defaults(kind)[name] != value)


@cache
def _defaults(kind: type[msgspec.Struct]) -> Mapping[str, Any]:
    """What a new object says of a field without anybody having written it."""
    found = {each.name: each.default for each in msgspec.structs.fields(kind) if each.default is not msgspec.NODEFAULT}
    found |= {
        each.name: each.default_factory()
        for each in msgspec.structs.fields(kind)
        if each.default_factory is not msgspec.NODEFAULT
    }
    # A new object is in some phase, and these are the ones it begins with.
    return found | _FIRST.get(kind, {})


def _check_node(caller: Caller, before: Object | None, after: Object | None, value: Object) -> None:
    if value.node != caller.node or (before is not None and before.node != caller.node):
        raise Forbidden(f"{value.key} is no business of {caller.identity}", key=value.key)
    if isinstance(before, Instance) and isinstance(after, Instance):
        check_move(before, after)
    if isinstance(after, Event) and after.spec.about.startswith("node ") and after.spec.about != f"node {caller.node}":
        raise Forbidden(f"an event about {after.spec.about} is no business of {caller.identity}")


def check_move(before: Instance, after: Instance) -> None:
    if not may_move(before.phase, after.phase):
        raise Invalid(
            f"{before.meta.name} cannot go from {before.phase} to {after.phase}",
            hint="phases only move as the table of phases says",
            key=before.key,
        )


def _check_bind(before: Instance, after: Instance) -> None:
    if before.spec.node and after.spec.node != before.spec.node:
        raise Forbidden(f"{before.key} has the node {before.spec.node}, and a node is given once", field="spec.node")
    check_move(before, after)


def _check_run(before: Object | None, after: Object | None, value: Workload) -> None:
    """Controllers make and delete the runs of a schedule, and count by load; what a workload says is its author's."""
    made = [field for field in changed_fields(before, after) if not field.startswith("status")]
    if made == ["spec.groups"] and _only_counts(before, after):
        return
    if made and not (value.spec.run_of and EXISTENCE in made):
        raise Forbidden(f"{value.key} is no run of a schedule: people write it", field=made[0], key=value.key)


def _only_counts(before: Object | None, after: Object | None) -> bool:
    """Nothing is different but the counts of groups that follow their load."""
    if not isinstance(before, Workload) or not isinstance(after, Workload):
        return False
    new = after.spec.groups
    counted = {
        name: msgspec.structs.replace(group, replicas=new[name].replicas)
        if name in new and group.autoscale is not None
        else group
        for name, group in before.spec.groups.items()
    }
    return counted == new


def _verb(before: Object | None, after: Object | None) -> str:
    if after is None:
        return "delete"
    return "create" if before is None else "replace"


def _hint(kind: str, field: str) -> str:
    if kind == "instance" and field == EXISTENCE:
        return "instances are made by their workload: apply a workload, or scale it"
    if field.startswith("status"):
        return "status is written by whoever observes it, never by users"
    return "every field has one writer"
