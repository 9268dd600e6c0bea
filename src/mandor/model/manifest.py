"""Reads manifests into objects and reports every error with its file and line.

Forms: a flat workload (one task), a workload with `groups`, other kinds with `kind:`, and objects as printed by `mandor
get -o yaml` (`kind, meta, spec`; fields set by the cluster are ignored).
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from mandor.errors import Invalid, TooLarge
from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import List, Malformed, Map, Parsed, load_all
from mandor.model.codec import KINDS
from mandor.model.dependency_cycle import HINT as CYCLE_HINT
from mandor.model.dependency_cycle import find_cycles
from mandor.model.group import FLAT, Group
from mandor.model.limit_defaults import LimitDefaults, LimitDefaultsSpec
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.meta import Key, Meta, Object, check_labels, check_name
from mandor.model.near_cycle import HINT, find_deadlocks
from mandor.model.network import Network, NetworkSpec
from mandor.model.pool import NodePool, NodePoolSpec
from mandor.model.priority import PriorityClass, PriorityClassSpec
from mandor.model.quota import Quota, QuotaSpec
from mandor.model.reading import FAILED, LATER, MISTAKES_MOST, Mistake, Reader
from mandor.model.rebalance import Rebalance, RebalanceSpec
from mandor.model.receiver import EventBus, EventBusSpec, Webhook, WebhookSpec
from mandor.model.record import Namespace, NamespaceSpec
from mandor.model.reservation import Reservation, ReservationSpec
from mandor.model.role import CustomRole, Issuer, IssuerSpec, RoleBinding, RoleBindingSpec, RoleSpec
from mandor.model.route import Route, RouteSpec
from mandor.model.secret import Secret, SecretSpec
from mandor.model.service import Service, ServiceSpec
from mandor.model.task import Task
from mandor.model.volume import Volume, VolumeSpec
from mandor.model.workload import Workload, WorkloadSpec

DEFAULT_NAMESPACE = "default"
OBJECTS_MOST = 5000

LATER_KINDS = frozenset(
    {
        "scheduler-config",
    }
)
_SPECS: dict[str, type[msgspec.Struct]] = {
    "workload": WorkloadSpec,
    "namespace": NamespaceSpec,
    "priority-class": PriorityClassSpec,
    "quota": QuotaSpec,
    "limit-defaults": LimitDefaultsSpec,
    "volume": VolumeSpec,
    "node-pool": NodePoolSpec,
    "secret": SecretSpec,
    "rebalance": RebalanceSpec,
    "reservation": ReservationSpec,
    "service": ServiceSpec,
    "route": RouteSpec,
    "network": NetworkSpec,
    "webhook": WebhookSpec,
    "event-bus": EventBusSpec,
    "log-sink": LogSinkSpec,
    "role": RoleSpec,
    "role-binding": RoleBindingSpec,
    "issuer": IssuerSpec,
}
APPLIED_KINDS = frozenset(_SPECS)
"""Kinds that users apply; the cluster makes the objects of the other kinds."""
_MADE: dict[str, Callable[..., Object]] = {
    "workload": Workload,
    "namespace": Namespace,
    "priority-class": PriorityClass,
    "quota": Quota,
    "limit-defaults": LimitDefaults,
    "volume": Volume,
    "node-pool": NodePool,
    "secret": Secret,
    "rebalance": Rebalance,
    "reservation": Reservation,
    "service": Service,
    "route": Route,
    "network": Network,
    "webhook": Webhook,
    "event-bus": EventBus,
    "log-sink": LogSink,
    "role": CustomRole,
    "role-binding": RoleBinding,
    "issuer": Issuer,
}

_META = ("kind", "name", "namespace", "labels")
_ORDERS = frozenset({"restarted", "rollout", "run_of"})
"""Fields written by commands and controllers, not by manifests."""
_WORKLOAD = tuple(
    name for name in (each.encode_name for each in msgspec.structs.fields(WorkloadSpec)) if name not in _ORDERS
)
_TASK = frozenset(each.encode_name for each in msgspec.structs.fields(Task)) - {"role"}
_GROUP = (frozenset(each.encode_name for each in msgspec.structs.fields(Group)) | {"count"}) - {"tasks"}
_IMPORT = "convert it with `mandor import`, or apply it unchanged with `mandor apply -f`"
_NOT_IN_META = frozenset({"uid", "version", "created_at"})
_FLAT_PATHS = (f"groups.{FLAT}.tasks.{FLAT}", f"groups.{FLAT}")


@dataclass(frozen=True, slots=True)
class Document:
    """One object of a manifest and its position."""

    object: Object
    file: str
    line: int
    source: Any = field(default=None, repr=False, compare=False)
    """The parsed source, with line numbers."""

    def line_of(self, path: str) -> int:
        """Return the line of a path such as `spec.priority`, or of its closest known parent."""
        line, here = self.line, self.source
        path = _unfolded(path) if _is_flat(here) else path
        steps = path.replace("[", ".").replace("]", "").split(".")
        if steps[0] in {"meta", "spec"} and isinstance(here, Map) and steps[0] not in here:
            del steps[0]
        for step in steps:
            if isinstance(here, List) and step.isdecimal() and int(step) < len(here):
                line, here = here.lines[int(step)], here[int(step)]
            elif isinstance(here, Map) and step in here:
                line, here = here.lines.get(step, line), here[step]
            else:
                break
        return line


def load_manifests(
    text: str | bytes,
    *,
    filename: str = "",
    namespace: str = DEFAULT_NAMESPACE,
    engines: Collection[str] | None = None,
) -> list[Document]:
    """Read all objects of one text; see `load_files`."""
    return load_files([(filename, text)], namespace=namespace, engines=engines)


def load_files(
    files: Iterable[tuple[str, str | bytes | Map]],
    *,
    namespace: str = DEFAULT_NAMESPACE,
    engines: Collection[str] | None = None,
) -> list[Document]:
    """Read all objects of several (name, text) files, in order. A mapping is a manifest inside another file, with its
    line numbers.

    Raises `Invalid` if anything is wrong: with the first error (facts `file`, `line`, `path`) and a list of all of them
    (`errors`). `namespace` applies to objects that set none; `engines` are the only valid engine names.
    """
    documents: list[Document] = []
    mistakes: list[tuple[str, Mistake]] = []
    for name, text in files:
        found, wrong = _read_file(name, text, namespace)
        documents += found
        mistakes += [(name, each) for each in sorted(wrong, key=lambda each: each.line)]
        if len(mistakes) >= MISTAKES_MOST:
            break
    mistakes += _duplicates(documents)
    mistakes += _near_cycles(documents)
    mistakes += _dependency_cycles(documents)
    if engines is not None:
        mistakes += [wrong for each in documents for wrong in _no_such_engine(each, engines)]
    if mistakes:
        raise _invalid(mistakes)
    return documents


def _invalid(mistakes: list[tuple[str, Mistake]]) -> Invalid:
    file, first = mistakes[0]
    errors = [
        {"file": name, "line": each.line, "path": each.path, "message": each.message, "hint": each.hint}
        for name, each in mistakes
    ]
    return Invalid(first.message, hint=first.hint, file=file, line=first.line, path=first.path, errors=errors)


def _read_file(name: str, text: str | bytes | Map, namespace: str) -> tuple[list[Document], list[Mistake]]:
    try:
        parsed = [Parsed(text, text.line)] if isinstance(text, Map) else load_all(text)
    except Malformed as error:
        kind = TooLarge if error.over else Invalid
        wrong = {"file": name, "line": error.line, "path": "", "message": error.message, "hint": error.hint}
        raise kind(error.message, hint=error.hint, file=name, line=error.line, path="", errors=[wrong]) from None
    found: list[Document] = []
    mistakes: list[Mistake] = []
    sources = [each for document in parsed for each in _items(document.value, document.line)]
    if not sources:
        mistakes.append(Mistake(1, "", "the manifest contains no object", "a manifest starts with `name:`"))
    if len(sources) > OBJECTS_MOST:
        raise TooLarge(f"{len(sources)} objects; at most {OBJECTS_MOST} are allowed", file=name, line=1)
    for source, line in sources:
        reader = Reader()
        value = _read(reader, source, line, namespace)
        mistakes += [_flat(each) for each in reader.mistakes] if _is_flat(source) else reader.mistakes
        if len(mistakes) >= MISTAKES_MOST:
            break
        if value is not None:
            found.append(Document(value, name, line, source))
    return found, mistakes


def _items(value: Any, line: int) -> list[tuple[Any, int]]:
    """Return the items of a list as printed by `mandor get -o yaml`, or the value itself."""
    if isinstance(value, Map) and isinstance(value.get("items"), List) and value.keys() <= {"items", "revision"}:
        items = value["items"]
        return [(each, at) for each, at in zip(items, items.lines, strict=True)]
    return [(value, line)]


def _is_flat(source: Any) -> bool:
    return isinstance(source, dict) and not source.keys() & {"groups", "meta", "spec"}


def _flat(mistake: Mistake) -> Mistake:
    return mistake._replace(path=_unfolded(mistake.path))


def _unfolded(path: str) -> str:
    """Return the path without the implicit group and task of a flat manifest."""
    bare = path.removeprefix("spec.")
    for prefix in _FLAT_PATHS:
        if bare == prefix or bare.startswith(f"{prefix}."):
            return bare[len(prefix) :].lstrip(".")
    return path


def _read(reader: Reader, source: Any, line: int, namespace: str) -> Object | None:
    if not isinstance(source, Map):
        reader.wrong(line, "", "an object must be a mapping", "a manifest starts with `name:`")
        return None
    kind = source.get("kind", "workload")
    if not _check_kind(reader, source, kind, line):
        return None
    if "meta" in source or "spec" in source:
        meta_source, spec_source = _split_object(reader, source, line)
    else:
        meta_source, spec_source = source, _spec_of(reader, source, kind, line)
    meta = _read_meta(reader, meta_source, kind, line, namespace, "meta" if "meta" in source else "")
    spec = reader.read(spec_source, _SPECS[kind], "spec" if "spec" in source else "", spec_source.line or line)
    if reader.mistakes or meta is None or spec is FAILED:
        return None
    try:
        return _MADE[kind](meta=meta, spec=spec)
    except ValueError as error:  # the name does not fit the spec
        reader.wrong(meta_source.lines.get("name", line), "name", str(error))
        return None


def _check_kind(reader: Reader, source: Map, kind: Any, line: int) -> bool:
    at = source.lines.get("kind", line)
    if "apiVersion" in source:
        reader.wrong(at, "", "this is a Kubernetes object, not a manifest", _IMPORT)
    elif "services" in source and isinstance(source["services"], dict) and "name" not in source:
        reader.wrong(line, "", "this is a Compose file, not a manifest", _IMPORT)
    elif isinstance(kind, str) and kind in LATER_KINDS:
        reader.wrong(at, "kind", f"`{kind}` is not supported yet")
    elif isinstance(kind, str) and kind in KINDS and kind not in _SPECS:
        change = "change a node with `mandor cordon`, `drain`, `taint` or `label`"
        hint = change if kind == "node" else None
        reader.wrong(at, "kind", f"{KINDS[kind].plural} are created by the cluster and cannot be applied", hint)
    elif not isinstance(kind, str) or kind not in _SPECS:
        reader.wrong(at, "kind", f"unknown kind {str(kind)[:40]!r}", did_you_mean(str(kind), _SPECS))
    else:
        return True
    return False


def _split_object(reader: Reader, source: Map, line: int) -> tuple[Map, Map]:
    """Return (meta, spec) of the form `kind, meta, spec`, without fields set by the cluster."""
    for key in source:
        if key not in {"kind", "meta", "spec", "status"}:
            reader.unknown(key, {"kind", "meta", "spec"}, frozenset(), "", source.lines[key])
    parts = []
    for name in ("meta", "spec"):
        part = source.get(name)
        if part is None and name == "spec" and source.get("kind") in {"namespace", "volume", "node-pool", "rebalance"}:
            part = Map(line)
        if not isinstance(part, Map):
            reader.wrong(source.lines.get(name, line), "", f"`{name}` is missing or not a mapping")
            part = Map(line)
        parts.append(part)
    return parts[0], parts[1]


def _read_meta(reader: Reader, source: Map, kind: str, line: int, namespace: str, path: str) -> Meta | None:
    dot = f"{path}." if path else ""
    if path:
        for key in source.keys() - {"name", "namespace", "labels"} - _NOT_IN_META:
            reader.unknown(key, {"name", "namespace", "labels"}, frozenset(), path, source.lines.get(key, line))
    before = len(reader.mistakes)
    if "name" not in source:
        reader.wrong(source.line or line, path, "`name` is missing")
        return None
    found: dict[str, Any] = {"namespace": namespace}
    for key, (wanted, check) in _META_CHECKS.items():
        if key not in source:
            continue
        at = source.lines.get(key, line)
        value = reader.read(source[key], wanted, dot + key, at, source.texts.get(key))
        if value is FAILED:
            continue
        try:
            check(value)
            found[key] = value
        except ValueError as error:
            reader.wrong(at, dot + key, str(error))
    if not KINDS[kind].namespaced:
        if source.get("namespace"):
            reader.wrong(source.lines["namespace"], dot + "namespace", f"a {kind} is cluster-wide and has no namespace")
        found["namespace"] = ""
    return Meta(**found) if len(reader.mistakes) == before else None


def _check_namespace(name: str) -> None:
    check_name(name, "namespace")


_META_CHECKS: dict[str, tuple[Any, Callable[[Any], None]]] = {
    "name": (str, check_name),
    "namespace": (str, _check_namespace),
    "labels": (dict[str, str], check_labels),
}


def _spec_of(reader: Reader, source: Map, kind: str, line: int) -> Map:
    """Return the spec of a manifest that is written without `meta` and `spec`."""
    spec = Map(source.line or line)
    if kind != "workload":
        for key in source:
            if key not in _META:
                spec.take(key, source)
        return spec
    for key in source:
        if key in _WORKLOAD:
            spec.take(key, source)
    inner = [key for key in source if key not in _META and key not in _WORKLOAD]
    if "groups" in source:
        _check_outside_groups(reader, source, inner)
        reader.partial = bool(reader.mistakes)
        return spec
    task, group = Map(spec.line), Map(spec.line)
    for key in inner:
        if key in _TASK:
            task.take(key, source)
        elif key in _GROUP:
            group.take(key, source)
        else:
            _unknown_in_flat(reader, key, source.lines[key])
            reader.partial = True
    tasks, groups = Map(spec.line), Map(spec.line)
    tasks.set(FLAT, task, spec.line)
    group.set("tasks", tasks, spec.line)
    groups.set(FLAT, group, spec.line)
    spec.set("groups", groups, spec.line)
    return spec


def _unknown_in_flat(reader: Reader, key: str, line: int) -> None:
    if key == "tasks":
        hint = "put several tasks under `groups: {NAME: {tasks: …}}`"
        reader.wrong(line, "", "`tasks` belongs to a group", hint)
        return
    later = LATER[WorkloadSpec] | LATER[Group] | LATER[Task]
    reader.unknown(key, {*_META, *_WORKLOAD, *_GROUP, *_TASK}, later, "", line)


def _check_outside_groups(reader: Reader, source: Map, keys: list[str]) -> None:
    for key in keys:
        line = source.lines[key]
        if key in _TASK or key in LATER[Task]:
            reader.wrong(
                line, "", f"`{key}` belongs to a task when there are `groups`", "move it to the task, under `groups`"
            )
        elif key in _GROUP or key in LATER[Group]:
            reader.wrong(
                line, "", f"`{key}` belongs to a group when there are `groups`", "move it to the group, under `groups`"
            )
        else:
            reader.unknown(key, {*_META, *_WORKLOAD}, LATER[WorkloadSpec], "", line)


def _duplicates(documents: list[Document]) -> list[tuple[str, Mistake]]:
    first: dict[Key, Document] = {}
    found = []
    for each in documents:
        other = first.setdefault(each.object.key, each)
        if other is not each:
            where = f"line {other.line}" if other.file == each.file else f"{other.file}:{other.line}"
            text = f"{each.object.key} is defined twice, first in {where}"
            found.append((each.file, Mistake(each.line, "name", text, "rename one of them")))
    return found


def _near_cycles(documents: list[Document]) -> list[tuple[str, Mistake]]:
    """Report groups whose near-rules wait for each other, at the first rule of each cycle."""
    workloads = {each.object.key: each for each in documents if isinstance(each.object, Workload)}
    found: dict[frozenset[str], tuple[str, Mistake]] = {}
    known = [each.object for each in workloads.values() if isinstance(each.object, Workload)]
    for each in find_deadlocks(known):
        document = workloads[each.workload.key]
        path = f"groups.{each.group}.placement.near[{each.rule}]"
        mistake = Mistake(_line_of(document, each.group, "placement", "near", each.rule), path, each.message, HINT)
        flat = _flat(mistake) if _is_flat(document.source) else mistake
        found.setdefault(frozenset(each.chain), (document.file, flat))
    return list(found.values())


def _dependency_cycles(documents: list[Document]) -> list[tuple[str, Mistake]]:
    """Report groups that depend on each other, at the first `depends_on` of each cycle."""
    workloads = {each.object.key: each for each in documents if isinstance(each.object, Workload)}
    found = []
    for each in find_cycles(each.object for each in workloads.values() if isinstance(each.object, Workload)):
        document = workloads[each.workload.key]
        path = f"groups.{each.group}.depends_on.{each.name}"
        mistake = Mistake(_line_of(document, each.group, "depends_on", each.name), path, each.message, CYCLE_HINT)
        found.append((document.file, _flat(mistake) if _is_flat(document.source) else mistake))
    return found


def _line_of(document: Document, group: str, *path: str | int) -> int:
    """Return the line of a path within a group, or of its closest known parent."""
    line, here = document.line, document.source
    inside: tuple[str | int, ...] = path if _is_flat(here) else ("groups", group, *path)
    for step in ("spec", *inside) if isinstance(here, dict) and "spec" in here else inside:
        if isinstance(here, List) and isinstance(step, int):
            return here.lines[step]
        if not isinstance(here, Map) or not isinstance(step, str) or step not in here:
            return line
        line, here = here.lines.get(step, line), here[step]
    return line


def _no_such_engine(document: Document, engines: Collection[str]) -> list[tuple[str, Mistake]]:
    value = document.object
    if not isinstance(value, Workload):
        return []
    found = []
    for group, spec in value.spec.groups.items():
        named = [(name, f"engine[{index}]") for index, name in enumerate(spec.engine)]
        for number, each in enumerate(spec.alternatives):
            named += [(name, f"alternatives[{number}].engine[{index}]") for index, name in enumerate(each.engine)]
        inside = "" if _is_flat(document.source) else f"groups.{group}."
        for name, place in named:
            if name not in engines:
                line, path = document.line_of(f"spec.groups.{group}.{place}"), inside + place.rpartition("[")[0]
                wrong = Mistake(line, path, f"unknown engine {name!r}", did_you_mean(name, engines))
                found.append((document.file, wrong))
    return found
