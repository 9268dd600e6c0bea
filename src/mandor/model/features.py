"""What versions can do, by name; and fields that are written only when every server knows them.

A field that a version adds to stored objects names its feature where it is defined:

    nice: Annotated[int, needs("nice")] = 0

The feature stands in `FEATURES`, servers announce it, and until all of them do the field stays at its default.
"""

from collections.abc import Iterator, Mapping, Set
from functools import cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, inspect

from mandor.model.meta import Object

FEATURES = (
    "apply",
    "audit",
    "audit-chain",
    "backup",
    "certificates",
    "commit",
    "credential-renewal",
    "custom-roles",
    "exec",
    "explain",
    "heartbeat",
    "image-digests",
    "join",
    "join-terms",
    "logs",
    "namespace-levels",
    "oidc",
    "plan",
    "pull-secrets",
    "running-at-once",
    "sealing-keys",
    "secret-changes",
    "secret-files",
    "servers",
    "snapshot",
    "supplies",
    "tasks",
    "tokens",
    "unknown-fields",
    "usage",
    "watch",
    "workload-identity",
)
"""What this version can do, so that clients and servers of other versions need not guess."""


def needs(feature: str) -> msgspec.Meta:
    """Marks a field, in `Annotated`."""
    return msgspec.Meta(extra={"feature": feature})


class Gated(NamedTuple):
    """A field that needs a feature, and has a value."""

    path: str
    feature: str


def gated(value: Object) -> list[Gated]:
    """The fields of an object that only some versions know."""
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
    """The same value with the fields at their defaults whose features are not known."""
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
    """The features of a struct's own fields."""
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
    """What any of its fields needs: for most kinds nothing, and then nobody has to look."""
    seen: set[type] = set()
    found: set[str] = set()

    def look(info: inspect.Type) -> None:
        if isinstance(info, inspect.StructType) and info.cls not in seen:
            seen.add(info.cls)
            found.update(_marks(info.cls).values())
            for field in info.fields:
                look(field.type)
        parts = [getattr(info, name, None) for name in ("type", "item_type", "value_type")]
        for each in (*getattr(info, "types", ()), *parts):
            if each is not None:
                look(each)

    look(inspect.type_info(kind))
    return frozenset(found)
