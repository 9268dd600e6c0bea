"""What every object has: a key, and the facts the store keeps about it."""

import re
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Struct

NAME_MOST = 63
TRACE_PARENT_LENGTH = 55
_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]*[a-z0-9])?")
_LABEL_KEY = re.compile(r"[A-Za-z0-9]([A-Za-z0-9./_-]*[A-Za-z0-9])?")


class Key(NamedTuple):
    """Where an object lives. Objects of the whole cluster have the namespace `""`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


_new_tuple = tuple.__new__


class Misfit(ValueError):
    """Values that do not go together: which key is to blame, within the value that was read, and a way out."""

    def __init__(self, message: str, *at: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.at = at
        self.hint = hint


def check_name(name: str, what: str = "name", most: int = NAME_MOST) -> None:
    if len(name) > most:
        raise ValueError(f"the {what} {name[:20]!r}… has {len(name)} characters; at most {most} are allowed")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a {what}; use a-z, 0-9, `-`, `.` and `_`, and start and end with one of a-z, 0-9"
        )


@lru_cache(maxsize=1024)
def _check_namespace(name: str) -> None:
    """Of a few, thousands of objects are made; what is wrong is not remembered."""
    check_name(name, "namespace")


def check_labels(labels: dict[str, str]) -> None:
    if len(labels) > 64:
        raise ValueError(f"{len(labels)} labels; at most 64 are allowed")
    for key, value in labels.items():
        if len(key) > 128 or not _LABEL_KEY.fullmatch(key):
            raise ValueError(f"{key[:40]!r} is not a label key; use letters, digits, `-`, `.`, `_` and `/`")
        if len(value) > 256:
            raise ValueError(f"the label {key} has a value of {len(value)} characters; at most 256 are allowed")


class TraceMark(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The trace that whoever wrote it was in: those who act on it go on with that."""

    parent: str
    """The span, as `traceparent` of the W3C's trace context says it."""
    at: float = 0.0
    """When the trace began; what is done much later is a story of its own."""

    def __post_init__(self) -> None:
        if len(self.parent) != TRACE_PARENT_LENGTH:
            raise ValueError(f"a trace's parent has {TRACE_PARENT_LENGTH} characters, as `traceparent` has")


class Meta(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    namespace: str = ""
    uid: str = ""
    """Given by the store when the object is new; never used again."""
    version: int = 0
    """The store's revision that last wrote the object; 0: not stored yet."""
    labels: dict[str, str] = {}
    created_at: float = 0.0
    trace: TraceMark | None = None
    """Only while traces are recorded, on workloads and their instances; the server writes it."""
    schema: int = 1
    """The number of its kind's shape when it was written: it grows when what was there means something else, not when
    fields are added."""

    def __post_init__(self) -> None:
        check_name(self.name, most=253)
        if self.namespace:
            _check_namespace(self.namespace)
        if self.labels:
            check_labels(self.labels)


class Object(
    Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="kind", forbid_unknown_fields=True
):
    """A stored thing: meta, spec (what is wanted), status (what is so)."""

    kind: ClassVar[str]
    plural: ClassVar[str]
    namespaced: ClassVar[bool] = True
    schema: ClassVar[int] = 1
    """The latest shape of this kind that this version knows, and the one it writes."""

    meta: Meta
    spec: Any
    status: Any

    @property
    def key(self) -> Key:
        meta = self.meta
        return _new_tuple(Key, (self.kind, meta.namespace, meta.name))  # half the time of Key(…), and asked for a lot

    @property
    def labels(self) -> dict[str, str]:
        return self.meta.labels

    @property
    def node(self) -> str:
        """The node this object belongs to, for watches by node; empty: none."""
        return ""

    def stamped(self, *, version: int, uid: str = "", created_at: float = 0.0) -> Self:
        """The same object as the store keeps it; only a store calls this."""
        meta = msgspec.structs.replace(
            self.meta,
            version=version,
            uid=uid or self.meta.uid,
            created_at=created_at or self.meta.created_at,
        )
        return msgspec.structs.replace(self, meta=meta)

    def changed(self, **fields: Any) -> Self:
        """The same object with other `meta`, `spec` or `status`."""
        return msgspec.structs.replace(self, **fields)
