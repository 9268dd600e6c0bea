"""Field ownership: the fields of each kind that a caller may write."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import msgspec

from mandor.api.caller import Caller, lacks
from mandor.api.rights import allowed, allowed_on, verbs_of
from mandor.errors import Forbidden, Invalid
from mandor.model.codec import KINDS
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Object
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.phase import Phase, may_move
from mandor.model.record import Event
from mandor.model.role import ANY, WRITES
from mandor.model.workload import Workload, WorkloadStatus

EXISTENCE = "existence"
"""Pseudo-field for creating, deleting or replacing an object."""

Fields = frozenset[str]
Rights = Mapping[str, Fields]

_WHOLE = frozenset({EXISTENCE, "meta.labels", "spec"})
_PEOPLE: Rights = {
    **dict.fromkeys(("workload", "node", "volume", "rebalance", "namespace", "priority-class"), _WHOLE),
    **dict.fromkeys(("quota", "limit-defaults", "node-pool", "reservation", "webhook", "event-bus"), _WHOLE),
    **dict.fromkeys(("service", "route", "network"), _WHOLE),
    **dict.fromkeys(("log-sink", "role", "role-binding", "issuer"), _WHOLE),
    # The server sets the status: `completed` replaces what a caller writes there.
    "secret": _WHOLE | {"status.changes", "status.issued"},
    "instance": frozenset({"spec.stop"}),
}
"""Fields that users write; their rules decide which objects they may create, update and delete."""
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
    **dict.fromkeys(("service", "route"), frozenset({EXISTENCE, "meta.labels", "spec", "status"})),
    "network": frozenset({"status"}),
    "webhook": frozenset({"status"}),
    "event-bus": frozenset({"status"}),
    "task": frozenset({EXISTENCE, "meta.labels", "spec", "status"}),
    "spare": frozenset({EXISTENCE, "meta.labels", "spec", "status"}),
    "inventory": frozenset({EXISTENCE, "meta.labels", "spec", "status"}),
    "release": frozenset({EXISTENCE, "meta.labels", "spec", "status.images", "status.secrets"}),
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
"""Fields of components by identity; other component tokens stand for the whole control plane."""


def rights_of(caller: Caller) -> Rights:
    if caller.role == "component":
        return _COMPONENTS.get(caller.identity, _EVERYTHING)
    if caller.role == "node":
        return _NODE
    if not caller.user:
        return {}
    changing = frozenset({ANY, *WRITES, *_PARTIAL})
    return {kind: fields for kind, fields in _PEOPLE.items() if verbs_of(caller.held, kind) & changing}


def check_kind(caller: Caller, kind: str) -> None:
    """Raise `Forbidden` if the caller may not write any object of this kind."""
    if kind not in rights_of(caller):
        raise Forbidden(f"{caller.identity} ({caller.role}) may not write {KINDS[kind].plural}", role=caller.role)


def check_reach(caller: Caller, key: Key) -> None:
    """Raise `Forbidden` if the caller may not write this key.

    Called before the object is read, so that the answer reveals nothing about objects that the caller may not read.
    """
    check_kind(caller, key.kind)
    if not caller.user:
        return
    rules = [msgspec.structs.replace(each, labels={}) for each in caller.held]  # labels are compared with the object
    if not any(allowed(rules, verb, *key) for verb in (*WRITES, *_PARTIAL)):
        raise Forbidden(f"{caller.identity} ({caller.role}) may not write {key}", role=caller.role)


def check_write(caller: Caller, before: Object | None, after: Object | None) -> None:
    """Raise `Forbidden`, naming the field, unless the caller may write every changed field."""
    value = after if after is not None else before
    assert value is not None
    fields = rights_of(caller).get(value.kind, frozenset())
    changed = changed_fields(before, after)
    for field in changed:
        if field not in fields and field.partition(".")[0] not in fields:
            what = _verb(before, after) if field == EXISTENCE else f"write {field} of"
            raise Forbidden(
                f"{caller.identity} ({caller.role}) may not {what} {value.key}",
                hint=_hint(value.kind, field),
                field=field,
                key=value.key,
            )
    if caller.user and changed:
        _check_rules(caller, before, after, changed)
    if caller.role == "node":
        _check_node(caller, before, after, value)
    if caller.identity == "component:scheduler" and isinstance(before, Instance) and isinstance(after, Instance):
        _check_bind(before, after)
    if caller.identity == "component:controllers" and isinstance(after, Node) and not after.meta.uid:
        raise Forbidden(
            f"{value.key} cannot be created by controllers: nodes join by themselves", field=EXISTENCE, key=value.key
        )
    if caller.identity == "component:controllers" and isinstance(value, Workload):
        _check_run(before, after, value)


_PARTIAL = ("scale", "rollout", "drain")
"""Verbs that allow a part of an update."""


def _check_rules(caller: Caller, before: Object | None, after: Object | None, changed: list[str]) -> None:
    """Raise `Forbidden` unless the rules allow the update on both the stored and the new object."""
    verbs = _verbs_of(before, after, changed)
    for value in (before, after):
        if value is not None and not any(allowed_on(caller.held, verb, value) for verb in verbs):
            raise Forbidden(
                f"{caller.identity} ({caller.role}) may not {verbs[0]} {value.key}",
                hint=lacks(verbs[0], value.kind),
                field=changed[0],
                key=value.key,
            )


def _verbs_of(before: Object | None, after: Object | None, changed: list[str]) -> tuple[str, ...]:
    """Return the verbs of which the caller needs one; the first is the general one."""
    if before is None:
        return ("create",)
    if after is None or (isinstance(after, Instance) and changed == ["spec.stop"]):
        return ("delete",)
    if EXISTENCE in changed:
        return ("create",)
    if isinstance(before, Workload) and isinstance(after, Workload):
        if changed == ["spec.groups"] and _only_counts(before, after, follow=False):
            return ("update", "scale")
        if changed == ["spec.rollout"]:
            return ("update", "rollout")
    if isinstance(after, Node) and set(changed) <= {"spec.drain", "spec.cordoned"}:
        return ("update", "drain")
    return ("update",)


def changed_fields(before: Object | None, after: Object | None) -> list[str]:
    """Return the changed fields in order: `existence`, `meta.labels`, `spec.node`, `status.phase` …"""
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
    """Return the default values of the fields of a new object."""
    found = {each.name: each.default for each in msgspec.structs.fields(kind) if each.default is not msgspec.NODEFAULT}
    found |= {
        each.name: each.default_factory()
        for each in msgspec.structs.fields(kind)
        if each.default_factory is not msgspec.NODEFAULT
    }
    # Phases have no default in the struct: these are the initial ones.
    return found | _FIRST.get(kind, {})


def _check_node(caller: Caller, before: Object | None, after: Object | None, value: Object) -> None:
    if value.node != caller.node or (before is not None and before.node != caller.node):
        raise Forbidden(f"{value.key} does not belong to {caller.identity}", key=value.key)
    if isinstance(before, Instance) and isinstance(after, Instance):
        check_move(before, after)
    if isinstance(after, Event) and after.spec.about.startswith("node ") and after.spec.about != f"node {caller.node}":
        raise Forbidden(f"{caller.identity} may not write an event about {after.spec.about}")


def check_move(before: Instance, after: Instance) -> None:
    if not may_move(before.phase, after.phase):
        raise Invalid(
            f"{before.meta.name} cannot change from {before.phase} to {after.phase}",
            hint="see the table of phases for the allowed changes",
            key=before.key,
        )


def _check_bind(before: Instance, after: Instance) -> None:
    if before.spec.node and after.spec.node != before.spec.node:
        raise Forbidden(
            f"{before.key} already has the node {before.spec.node}, which cannot be changed", field="spec.node"
        )
    check_move(before, after)


def _check_run(before: Object | None, after: Object | None, value: Workload) -> None:
    """Raise `Forbidden` unless controllers write a run of a schedule, or the count of an autoscaled group."""
    made = [field for field in changed_fields(before, after) if not field.startswith("status")]
    if made == ["spec.groups"] and _only_counts(before, after):
        return
    if made and not (value.spec.run_of and EXISTENCE in made):
        raise Forbidden(f"{value.key} is not a run of a schedule: only users write it", field=made[0], key=value.key)


def _only_counts(before: Object | None, after: Object | None, *, follow: bool = True) -> bool:
    """Return whether only counts differ; `follow`: only those of autoscaled groups."""
    if not isinstance(before, Workload) or not isinstance(after, Workload):
        return False
    new = after.spec.groups
    counted = {
        name: msgspec.structs.replace(group, replicas=new[name].replicas)
        if name in new and (group.autoscale is not None or not follow)
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
        return "instances are created by their workload: apply or scale the workload"
    if field.startswith("status"):
        return "the status is written by agents and controllers, not by users"
    return "another component owns this field"
