"""Wire format of changes and writes: one line of JSON each."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.api.http.problems import describe
from mandor.errors import Invalid, MandorError
from mandor.model.codec import KINDS, decode, encode
from mandor.model.meta import Key
from mandor.store.base import OPERATIONS_MOST, Change, Check, Delete, Put, Write


def line_of(change: Change) -> bytes:
    """Return the line of a change, encoded once for all watchers."""
    line = change.line
    if line is None:
        before = encode(change.before) if change.before is not None else b"null"
        after = encode(change.after) if change.after is not None else b"null"
        line = b'{"revision":%d,"before":%b,"after":%b}\n' % (change.revision, before, after)
        change.line = line
    return line


def error_line(error: MandorError) -> bytes:
    return msgspec.json.encode({"error": describe(error)}, enc_hook=str) + b"\n"


class Target(Struct, frozen=True, forbid_unknown_fields=True):
    kind: str
    name: str
    version: int
    namespace: str = ""

    @property
    def key(self) -> Key:
        if self.kind not in KINDS:
            raise Invalid(f"there is no kind {self.kind!r}", path="kind")
        return Key(self.kind, self.namespace, self.name)


class WireWrite(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A write: exactly one of `put`, `delete` and `check`."""

    put: msgspec.Raw = msgspec.Raw()
    delete: Target | None = None
    check: Target | None = None

    def write(self) -> Write:
        put = bytes(self.put)
        if [bool(put), self.delete is not None, self.check is not None].count(True) != 1:
            raise Invalid("a write is exactly one of `put`, `delete` and `check`")
        if put:
            value = decode(put)
            if value.namespaced != bool(value.meta.namespace):
                rule = "has a namespace" if value.namespaced else "belongs to no namespace"
                raise Invalid(f"a {value.kind} {rule}", path="meta.namespace")
            return Put(value)
        if self.delete is not None:
            return Delete(self.delete.key, self.delete.version)
        assert self.check is not None
        return Check(self.check.key, self.check.version)


class WriteShape(Struct, frozen=True, forbid_unknown_fields=True):
    """A write: exactly one of `put`, `delete` and `check`."""

    put: dict[str, Any] | None = None
    """A whole object; its meta.version is the one it replaces, 0 for a new one."""
    delete: Target | None = None
    check: Target | None = None


class CommitShape(Struct, frozen=True, forbid_unknown_fields=True):
    """At most 100 puts and deletes, 128 writes with checks."""

    writes: Annotated[list[WriteShape], Bounds(max_length=OPERATIONS_MOST)]


class Commit(Struct, frozen=True, forbid_unknown_fields=True):
    writes: Annotated[list[WireWrite], Bounds(max_length=OPERATIONS_MOST)]


class Committed(Struct, frozen=True):
    revision: int
