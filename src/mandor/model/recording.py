"""Lines of a recording: the state of a live cluster and its changes, without confidential data.

A recording is a text file with one JSON object per line. It starts with `RecordingStart`; the lines between
`SnapshotStart` and `SnapshotEnd` are a full snapshot. It contains no commands, arguments, variables, files or secrets,
only what determines placement and run times.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from mandor.errors import Invalid
from mandor.model.codec import encode
from mandor.model.group import Group
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Namespace
from mandor.model.reservation import Reservation
from mandor.model.task import Probe, Task
from mandor.model.variant import TaskVariant
from mandor.model.volume import Volume, VolumeStatus
from mandor.model.workload import Workload

VERSION = 1
NOT_RECORDED = {
    "release": "recreated from its workload",
    "limit-defaults": "already filled into the recorded workloads",
    "node-pool": "ordered machines are recorded as nodes",
    "rebalance": "a one-time request, to be repeated by hand where it matters",
    "secret": "confidential",
    "token": "confidential",
    "session": "confidential",
    "audit": "confidential",
    "service": "does not change placement; services of workloads are part of the workloads",
    "route": "does not change placement",
    "network": "the engines of a node list the networks that it is part of",
    "webhook": "a simulation sends nothing to other systems",
    "event-bus": "a simulation sends nothing to other systems",
    "log-sink": "a simulation sends nothing to other systems",
    "task": "placement of virtual machines is not replayed",
    "inventory": "placement of virtual machines is not replayed",
    "spare": "placement of virtual machines is not replayed",
    "decision": "a result that the replay computes again",
    "event": "a result that the replay computes again",
    "tally": "a result that the replay computes again",
    "lease": "internal to the servers",
    "hearing": "internal to the servers",
    "server": "internal to the servers",
    "cluster": "internal to the servers",
    "role": "access rights do not change placement",
    "role-binding": "access rights do not change placement",
    "issuer": "access rights do not change placement",
    "authority": "confidential",
    "identity-key": "confidential",
    "acme-account": "confidential",
}
"""Kinds that a recording omits, with the reason; a new kind belongs here or in `KINDS`."""
KINDS = frozenset(
    each.kind for each in (Node, Workload, Instance, PriorityClass, Volume, Reservation, Quota, Namespace)
)
"""Kinds that a recording contains: everything that determines placement."""
PROGRAM = ("program",)
T = TypeVar("T", Task, TaskVariant)


class Line(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, tag_field="what"):
    at: float
    """Wall clock time of the recording server."""


class RecordingStart(Line, frozen=True, tag="began"):
    version: int = VERSION
    cluster: str = ""
    suspect_seconds: float = 20.0
    lost_seconds: float = 60.0
    mass_share: float = 0.5
    part: int = 1
    dropped: int = 0
    """Number of earlier parts that were deleted, because the size of a recording is limited."""


class ProfilesLine(Line, frozen=True, tag="profiles"):
    text: str = ""
    """Scheduler configuration from now on; empty for the built-in one."""


class SnapshotStart(Line, frozen=True, tag="whole"):
    """Start of a full snapshot, which ends with `SnapshotEnd`."""

    why: str = ""
    """Reason for a new snapshot, such as missed changes."""


class SnapshotEnd(Line, frozen=True, tag="complete"):
    pass


class ObjectLine(Line, frozen=True, tag="seen"):
    """New state of an object."""

    object: Raw
    hidden: bool = False
    """Whether fields that a recording omits have changed, such as variables, which starts a roll-out."""


class InstanceLine(Line, frozen=True, kw_only=True, tag="ran"):
    """New state of an instance."""

    namespace: str
    name: str
    workload: str
    node: str = ""
    phase: Phase
    ready: bool = False
    restarts: int = 0
    started_at: float = 0.0
    exit_code: int | None = None
    reason: str = ""


class DeletionLine(Line, frozen=True, kw_only=True, tag="gone"):
    kind: str
    namespace: str = ""
    name: str


class UsageLine(Line, frozen=True, tag="used"):
    """Resource usage per instance, by workload: average CPU in thousandths of a core, peak memory in bytes."""

    workloads: dict[str, tuple[int, int]]


class RecordingEnd(Line, frozen=True, tag="ended"):
    """Regular stop of the server."""


AnyLine = (
    RecordingStart
    | ProfilesLine
    | SnapshotStart
    | SnapshotEnd
    | ObjectLine
    | InstanceLine
    | DeletionLine
    | UsageLine
    | RecordingEnd
)
_decoder = msgspec.json.Decoder(AnyLine)


def write_line(line: AnyLine) -> bytes:
    return encode(line) + b"\n"


def read_line(data: bytes) -> AnyLine:
    """Parse one line of a recording; raises `Invalid`."""
    try:
        found: AnyLine = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Invalid(f"not a valid line of a recording: {error}") from error
    return found


def line_of(at: float, value: Object) -> ObjectLine | InstanceLine:
    if isinstance(value, Instance):
        return InstanceLine(
            at=at,
            namespace=value.meta.namespace,
            name=value.meta.name,
            workload=value.spec.workload,
            node=value.node,
            phase=value.phase,
            ready=value.status.ready,
            restarts=value.status.restarts,
            started_at=value.status.started_at,
            exit_code=value.status.exit_code,
            reason=value.status.reason,
        )
    return ObjectLine(at=at, object=Raw(encode(plain(value))))


def change_of(
    at: float, before: Object | None, after: Object | None
) -> ObjectLine | InstanceLine | DeletionLine | None:
    """Return the line that records a change, or None if the change is not recorded."""
    value = after or before
    if value is None or value.kind not in KINDS:
        return None
    if after is None:
        return DeletionLine(at=at, kind=value.kind, namespace=value.meta.namespace, name=value.meta.name)
    if before is not None and _facts(before) == _facts(after):
        return None
    line = line_of(at, after)
    hidden = isinstance(before, Workload) and isinstance(after, Workload) and _hidden_change(before, after)
    return msgspec.structs.replace(line, hidden=True) if hidden else line


def _hidden_change(before: Workload, after: Workload) -> bool:
    """Return whether the templates differ only in fields that a recording omits."""
    if before.spec.template == after.spec.template:
        return False
    plain_before, plain_after = (plain(each).spec.template for each in (before, after))
    return bool(plain_before == plain_after)


def _facts(value: Object) -> tuple[Any, ...]:
    """Return the facts of an object that a recording contains."""
    if isinstance(value, Instance):
        status = value.status
        return (value.node, status.phase, status.ready, status.started_at, status.restarts)
    if isinstance(value, Node):
        status_ = value.status
        facts = (status_.phase, status_.capacity, status_.engines, status_.facts)
        return (value.spec, value.meta.labels, *facts)
    if isinstance(value, Volume):
        return (value.spec, value.meta.labels, value.status.node)
    return (value.spec, value.meta.labels)


# Removing confidential data.


def plain(value: Object) -> Object:
    """Return the object without confidential data."""
    meta = Meta(
        name=value.meta.name,
        namespace=value.meta.namespace,
        labels=value.meta.labels,
        created_at=value.meta.created_at,
    )
    if isinstance(value, Workload):
        groups = {name: _plain_group(group) for name, group in value.spec.groups.items()}
        return Workload(meta=meta, spec=msgspec.structs.replace(value.spec, groups=groups))
    if isinstance(value, Node):
        status = msgspec.structs.replace(
            value.status, address="", images={}, usage=None, drain=None, maintenance=None, reason=""
        )
        return value.changed(meta=meta, status=status)
    if isinstance(value, Volume):
        bound = VolumeStatus(phase=value.status.phase, node=value.status.node, workload=value.status.workload)
        return Volume(meta=meta, spec=value.spec, status=bound)
    return type(value)(meta=meta, spec=value.spec)  # type: ignore[call-arg]


def _plain_group(group: Group) -> Group:
    alternatives = tuple(
        _plain_task(msgspec.structs.replace(each, tasks={name: _plain_task(task) for name, task in each.tasks.items()}))
        for each in group.alternatives
    )
    tasks = {name: _plain_task(task) for name, task in group.tasks.items()}
    return msgspec.structs.replace(group, tasks=tasks, alternatives=alternatives)


def _plain_task(task: T) -> T:
    empty: dict[str, Any] = {"env": {}, "secrets": {}, "files": (), "args": ()}
    if isinstance(task, TaskVariant):
        empty |= {name: None for name in ("secrets", "files", "args") if getattr(task, name) is None}
    return msgspec.structs.replace(
        task,
        **empty,
        command=PROGRAM if task.command else task.command,
        working_dir=None,
        options=_plain_options(task.options),
        **{kind: _plain_probe(getattr(task, kind)) for kind in ("health", "readiness", "startup")},
    )


def _plain_options(options: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Keep only options that determine where a task can run."""
    kept = {engine: {key: given[key] for key in given if key == "type"} for engine, given in options.items()}
    return {engine: given for engine, given in kept.items() if given}


def _plain_probe(probe: Probe | None) -> Probe | None:
    if probe is None:
        return None
    return msgspec.structs.replace(
        probe, http=None if probe.http is None else "/", command=None if probe.command is None else PROGRAM
    )


def key_of(line: InstanceLine | DeletionLine) -> Key:
    return Key(Instance.kind if isinstance(line, InstanceLine) else line.kind, line.namespace, line.name)
