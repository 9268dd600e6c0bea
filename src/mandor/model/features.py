"""Features of this version by name, and stored fields that are written only when every server supports them.

A field added to a stored object names its feature where it is defined:
"""

from collections.abc import Iterator, Mapping, Set
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, inspect

from mandor.model.meta import Object

FEATURES = (
    "acme",
    "aliases",
    "apply",
    "audit",
    "audit-chain",
    "backup",
    "batch-per-node",
    "certificates",
    "commit",
    "credential-renewal",
    "custom-roles",
    "dedicated-class",
    "exec",
    "explain",
    "heartbeat",
    "image-digests",
    "inventory-keys",
    "join",
    "join-terms",
    "logs",
    "mount-seeds",
    "mount-subpaths",
    "namespace-levels",
    "networks",
    "oidc",
    "overhead",
    "placement-conditions",
    "plan",
    "port-forward",
    "probe-checks",
    "pull-secrets",
    "rebalance-prefer",
    "reschedule-attempts",
    "routes",
    "running-at-once",
    "sealing-keys",
    "secret-changes",
    "secret-files",
    "servers",
    "services",
    "snapshot",
    "supplies",
    "tasks",
    "tokens",
    "unknown-fields",
    "unmade-machines",
    "usage",
    "watch",
    "workload-identity",
)
"""Features of this version; announced so that clients and servers of other versions can check for them."""


def needs(feature: str) -> msgspec.Meta:
    """Mark a field, in `Annotated`, as requiring a feature."""
    return msgspec.Meta(extra={"feature": feature})


class Gated(NamedTuple):
    """A field that requires a feature and has a value."""

    path: str
    feature: str


def gated(value: Object) -> list[Gated]:
    """List the fields of an object that require a feature and are set."""
    return list(_found(value, "")) if features_of(type(value)) else []


def _found(value: Any, path: str) -> Iterator[Gated]:
    if isinstance(value, Struct):
        marks = _marks(type(value))
        for field in msgspec.structs.fields(value):
            part, name = getattr(value, field.name), f"{path}.{field.encode_name}".lstrip(".")
            if field.name in marks and part != _default(field):
                yield Gated(name, marks[field.name])
            yield from _found(part, name)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _found(part, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for place, part in enumerate(value):
            yield from _found(part, f"{path}.{place}")


def without(value: Any, known: Set[str]) -> Any:
    """Return the value with fields of unsupported features reset to their defaults."""
    if isinstance(value, Struct):
        marks = _marks(type(value))
        changed = {}
        for field in msgspec.structs.fields(value):
            part = getattr(value, field.name)
            kept = _default(field) if marks.get(field.name, "") not in {"", *known} else without(part, known)
            if kept is not part:
                changed[field.name] = kept
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, dict):
        parts = {key: without(part, known) for key, part in value.items()}
        return parts if any(parts[key] is not value[key] for key in parts) else value
    if isinstance(value, tuple):
        items = tuple(without(part, known) for part in value)
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
    return value


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


@cache
def _marks(kind: type[Struct]) -> Mapping[str, str]:
    """Return the features required by the fields of one struct."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    marked = {
        field.name: (field.type.extra or {}).get("feature", "")
        for field in info.fields
        if isinstance(field.type, inspect.Metadata)
    }
    return {name: str(feature) for name, feature in marked.items() if feature}


@cache
def features_of(kind: type[Object]) -> frozenset[str]:
    """Return all features required by fields of a kind; empty for most kinds."""
    seen: set[type] = set()
    found: set[str] = set()

    def visit(info: inspect.Type) -> None:
        if isinstance(info, inspect.StructType) and info.cls not in seen:
            seen.add(info.cls)
            found.update(_marks(info.cls).values())
            for field in info.fields:
                visit(field.type)
        parts = [getattr(info, name, None) for name in ("type", "item_type", "value_type")]
        for each in (*getattr(info, "types", ()), *parts):
            if each is not None:
                visit(each)

    visit(inspect.type_info(kind))
    return frozenset(found)
