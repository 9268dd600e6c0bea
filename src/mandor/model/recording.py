"""The lines of a recording: what a live cluster was, what happened to it, and nothing that anybody has to hide.

A recording is a text file with one JSON object a line. It begins with `Began`; whatever stands between `Whole` and
`Complete` is all there is at that moment. Programs are nameless in it: no commands, arguments, variables, files or
secrets, only what decides where work goes and how long it runs.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from mandor.errors import Invalid
from mandor.model.codec import encode
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
from mandor.model.volume import Volume
from mandor.model.workload import Group, Workload

VERSION = 1
NOT_RECORDED = {
    "release": "made again from its workload",
    "limit-defaults": "already filled into the recorded workloads",
    "node-pool": "the machines it ordered are recorded as nodes",
    "rebalance": "an order of one moment, made again by hand where it matters",
    "secret": "confidential",
    "token": "confidential",
    "session": "confidential",
    "audit": "confidential",
    "webhook": "a rehearsal sends nothing to other systems",
    "event-bus": "a rehearsal sends nothing to other systems",
    "log-sink": "a rehearsal sends nothing to other systems",
    "task": "placement of virtual machines is not replayed",
    "inventory": "placement of virtual machines is not replayed",
    "spare": "placement of virtual machines is not replayed",
    "decision": "a result, which the replay makes again",
    "event": "a result, which the replay makes again",
    "tally": "a result, which the replay makes again",
    "lease": "internal to the servers",
    "hearing": "internal to the servers",
    "server": "internal to the servers",
    "cluster": "internal to the servers",
    "role": "access rights do not change placement",
    "role-binding": "access rights do not change placement",
    "issuer": "access rights do not change placement",
    "authority": "confidential",
    "identity-key": "confidential",
}
"""Kinds that a recording leaves out, each with the reason; a new kind belongs here or in `KINDS`."""
KINDS = frozenset(
    each.kind for each in (Node, Workload, Instance, PriorityClass, Volume, Reservation, Quota, Namespace)
)
"""Kinds that a recording contains: everything that decides where work goes."""
PROGRAM = ("program",)
T = TypeVar("T", Task, TaskVariant)


class Line(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, tag_field="what"):
    at: float
    """On the wall clock of the server that wrote it."""


class Began(Line, frozen=True, tag="began"):
    version: int = VERSION
    cluster: str = ""
    luck: str = ""
    """How the scheduler breaks ties."""
    suspect_seconds: float = 20.0
    lost_seconds: float = 60.0
    mass_share: float = 0.5
    part: int = 1
    dropped: int = 0
    """So many parts before the one before this are gone: the file is bounded."""


class Profiles(Line, frozen=True, tag="profiles"):
    text: str = ""
    """The scheduler's configuration from now on; empty: what is built in."""


class Whole(Line, frozen=True, tag="whole"):
    """What follows, until `Complete`, is all there is."""

    why: str = ""
    """Why it is told anew: what was missed."""


class Complete(Line, frozen=True, tag="complete"):
    pass


class Seen(Line, frozen=True, tag="seen"):
    """An object as it is from now on."""

    object: Raw


class Ran(Line, frozen=True, kw_only=True, tag="ran"):
    """An instance as it is from now on."""

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


class Gone(Line, frozen=True, kw_only=True, tag="gone"):
    kind: str
    namespace: str = ""
    name: str


class Used(Line, frozen=True, tag="used"):
    """What one instance uses, by workload: milli-cores in the mean, bytes at most."""

    workloads: dict[str, tuple[int, int]]


class Ended(Line, frozen=True, tag="ended"):
    """The server stopped as it should."""


AnyLine = Began | Profiles | Whole | Complete | Seen | Ran | Gone | Used | Ended
_decoder = msgspec.json.Decoder(AnyLine)


def write_line(line: AnyLine) -> bytes:
    return encode(line) + b"\n"


def read_line(data: bytes) -> AnyLine:
    """`Invalid` for what is none."""
    try:
        found: AnyLine = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Invalid(f"not a line of a recording: {error}") from error
    return found


def line_of(at: float, value: Object) -> Seen | Ran:
    if isinstance(value, Instance):
        return Ran(
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
    return Seen(at=at, object=Raw(encode(plain(value))))


def change_of(at: float, before: Object | None, after: Object | None) -> Seen | Ran | Gone | None:
    """What a recording says of a change; None: nothing."""
    value = after or before
    if value is None or value.kind not in KINDS:
        return None
    if after is None:
        return Gone(at=at, kind=value.kind, namespace=value.meta.namespace, name=value.meta.name)
    if before is not None and _facts(before) == _facts(after):
        return None
    return line_of(at, after)


def _facts(value: Object) -> tuple[Any, ...]:
    """What a recording tells of it."""
    if isinstance(value, Instance):
        status = value.status
        return (value.node, status.phase, status.ready, status.started_at, status.restarts)
    if isinstance(value, Node):
        status_ = value.status
        told = (status_.phase, status_.capacity, status_.engines, status_.facts)
        return (value.spec, value.meta.labels, *told)
    return (value.spec, value.meta.labels)


# Without what anybody has to hide.


def plain(value: Object) -> Object:
    """The object as a recording has it."""
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
    """Only what decides where it can run."""
    kept = {engine: {key: told[key] for key in told if key == "type"} for engine, told in options.items()}
    return {engine: told for engine, told in kept.items() if told}


def _plain_probe(probe: Probe | None) -> Probe | None:
    if probe is None:
        return None
    return msgspec.structs.replace(
        probe, http=None if probe.http is None else "/", command=None if probe.command is None else PROGRAM
    )


def key_of(line: Ran | Gone) -> Key:
    return Key(Instance.kind if isinstance(line, Ran) else line.kind, line.namespace, line.name)
