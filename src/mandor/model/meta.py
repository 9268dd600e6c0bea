"""Key and metadata of objects, and checks of names and labels."""

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
    """Identifies an object. Cluster-wide objects have the namespace `""`."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


_new_tuple = tuple.__new__


class InvalidField(ValueError):
    """A validation error with the path of the field, relative to the value that was read, and a hint."""

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
    """Check a namespace's name; successes are cached, because thousands of objects share a few namespaces."""
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
    """Trace context of the request that wrote an object; components that act on the object continue the trace."""

    parent: str
    """Parent span in the format of the W3C `traceparent` header."""
    at: float = 0.0
    """Unix time at which the trace started; much later actions start a new trace."""

    def __post_init__(self) -> None:
        if len(self.parent) != TRACE_PARENT_LENGTH:
            raise ValueError(f"`trace.parent` must have {TRACE_PARENT_LENGTH} characters, as in a `traceparent` header")


class Meta(Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    name: str
    namespace: str = ""
    uid: str = ""
    """Unique id, set by the store when the object is created and never reused."""
    version: int = 0
    """Store revision of the last write of the object; 0 if it is not stored yet."""
    labels: dict[str, str] = {}
    created_at: float = 0.0
    trace: TraceMark | None = None
    """Trace context, on workloads and instances while tracing is enabled; set by the server."""
    schema: int = 1
    """Schema version of the kind when the object was written. It increases when a field changes its meaning, not when
    fields are added.
    """

    def __post_init__(self) -> None:
        check_name(self.name, most=253)
        if self.namespace:
            _check_namespace(self.namespace)
        if self.labels:
            check_labels(self.labels)


class Object(
    Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True, tag_field="kind", forbid_unknown_fields=True
):
    """A stored object: meta, spec (desired state), status (observed state)."""

    kind: ClassVar[str]
    plural: ClassVar[str]
    namespaced: ClassVar[bool] = True
    schema: ClassVar[int] = 1
    """Latest schema version that this version of Mandor reads, and the one that it writes."""

    meta: Meta
    spec: Any
    status: Any

    @property
    def key(self) -> Key:
        meta = self.meta
        return _new_tuple(
            Key, (self.kind, meta.namespace, meta.name)
        )  # takes half the time of Key(…), which matters: keys are read often

    @property
    def labels(self) -> dict[str, str]:
        return self.meta.labels

    @property
    def node(self) -> str:
        """Name of the node that the object belongs to, for watches by node; empty if none."""
        return ""

    def stamped(self, *, version: int, uid: str = "", created_at: float = 0.0) -> Self:
        """Return the object with the metadata set by a store on commit."""
        meta = msgspec.structs.replace(
            self.meta,
            version=version,
            uid=uid or self.meta.uid,
            created_at=created_at or self.meta.created_at,
        )
        return msgspec.structs.replace(self, meta=meta)

    def changed(self, **fields: Any) -> Self:
        """Return the object with other `meta`, `spec` or `status`."""
        return msgspec.structs.replace(self, **fields)
