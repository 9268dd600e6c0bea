"""The store interface: four verbs over versioned objects.

* Revisions only grow, across all kinds.
* Objects are frozen: a value that was read never changes.
* A commit that returned is durable, and every later read and watch of this store shows it.
* A watch returns every change after `since`, in order, once. If the store no longer keeps those
  changes it raises `Expired`; the watcher lists again and continues from there.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from msgspec import Struct

from mandor.errors import Invalid
from mandor.model.meta import Key, Object

KeyTuple = tuple[str, ...]
"""The key of an object as a plain tuple. It equals the `Key`, but the garbage collector does not track it."""

_new_tuple = tuple.__new__

WRITES_MOST = 100
"""Puts and deletes per commit, in every store."""
LARGE_BYTES = 4096
"""Bytes from which on an object is counted by size in the watchers' buffers and the history."""
OPERATIONS_MOST = 128
"""Puts, deletes and checks per commit; leaves room for the leader's check. etcd has the same limit."""


class Put(Struct, frozen=True, gc=False):
    """Write `value`, if the stored version is still the one it carries (0: must be new)."""

    value: Object

    @property
    def key(self) -> Key:
        return self.value.key


class Delete(Struct, frozen=True, gc=False):
    """Remove the object, if its stored version is still this one."""

    key: Key
    version: int


class Check(Struct, frozen=True, gc=False):
    """Write nothing, but fail the commit if the stored version is not this one (0: must not exist)."""

    key: Key
    version: int


Write = Put | Delete | Check


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects the objects of a list or watch; an object matches if it matches every field that is set."""

    namespace: str | None = None
    node: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    """Kinds to include in a list or watch of every kind; empty: all kinds."""
    supplies: bool = False
    """For a watch of instances: deliver the release and the workload that an instance needs before the instance itself,
    as changes of the same revision, if the watcher would have to read them over the network. It selects nothing."""

    def matches(self, value: Object) -> bool:
        return (
            (self.namespace is None or value.meta.namespace == self.namespace)
            and (self.node is None or value.node == self.node)
            and (not self.kinds or value.kind in self.kinds)
            and (not self.labels or all(value.labels.get(key) == wanted for key, wanted in self.labels.items()))
        )


ALL = Filter()


@dataclass(frozen=True, slots=True)
class Listing:
    items: Sequence[Object]
    revision: int
    """Revision of the listing; a watch from here misses nothing."""
    key_tuples: Sequence[KeyTuple] = ()
    """Keys of the items as plain tuples, if the store has them; see `Change.key_tuple`."""


class Change(Struct, gc=False):
    """One change as a watcher receives it. Created: no `before`. Deleted: no `after`. Neither: a bookmark."""

    revision: int
    before: Object | None
    after: Object | None
    line: bytes | None = None
    """Encoded form for HTTP watchers, cached by the first one that needs it."""
    key_tuple: KeyTuple | None = None
    """The key as a plain tuple, shared by the index and its mirrors."""
    size: int = 0
    """Stored size of `after` in bytes if it is larger than `LARGE_BYTES`, else 0."""

    @property
    def bookmark(self) -> bool:
        return self.before is None and self.after is None

    @property
    def value(self) -> Object:
        found = self.before if self.after is None else self.after
        assert found is not None, "a bookmark has no value"
        return found

    @property
    def status_only(self) -> bool:
        """Whether spec, uid and labels are identical before and after. False if the store decodes objects again for
        every change, because specs are compared by identity."""
        before, after = self.before, self.after
        if before is None or after is None or before.spec is not after.spec:
            return False
        return before.meta.uid == after.meta.uid and before.meta.labels == after.meta.labels

    @property
    def key(self) -> Key:
        return self.value.key if self.key_tuple is None else _new_tuple(Key, self.key_tuple)


class Store(ABC):
    """Base class of all stores. Use it as an async context manager: leaving the block closes it."""

    @abstractmethod
    async def get(self, key: Key) -> Object | None: ...

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        """Return the result of `get` for each key, with fewer requests where the store supports that."""
        return [await self.get(key) for key in keys]

    @abstractmethod
    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        """Return all objects of a kind (None: every kind) at one revision, ordered by key."""

    @abstractmethod
    async def commit(self, *writes: Write) -> int:
        """Apply all writes or none; return the new revision.

        Raise `Conflict` (with the facts `key` and `version`, the stored version) when an object
        changed since it was read, and `Unavailable` when the commit is not known to be stored.
        """

    @abstractmethod
    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        """Return each change after `since`, in order, once; changes that arrive together come as one batch.

        With a filter, a change is delivered if before or after matches, and an object that stops matching
        is delivered as a deletion. A bookmark confirms that nothing up to its revision was missed.
        """

    async def problems(self) -> Sequence[str]:
        """Return the problems of a store that still answers, each with its remedy."""
        return ()

    async def check_available(self) -> None:
        """Raise `Unavailable` if nothing can be written now. Stores that answer reads from memory need this check."""
        return

    def lease_channel(self) -> "LeaseChannel | None":
        """Return a connection for renewing leases from a thread; None if only this process can access the store."""
        return None

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class LeaseChannel(ABC):
    """A blocking connection for threads, independent of the event loop; closed with the store."""

    @abstractmethod
    def get(self, key: Key, seconds: float) -> Object | None:
        """Return the object as it is stored now, bypassing the index. `seconds` limits the call."""

    @abstractmethod
    def commit(self, *writes: Write, seconds: float) -> int:
        """Commit as `Store.commit` does, without the facts of a conflict. `seconds` limits the call."""


def check_writes(writes: Sequence[Write]) -> list[Key]:
    """Return the keys of the writes; raise `Invalid` for a commit that every store rejects."""
    keys = [write.value.key if type(write) is Put else write.key for write in writes]
    if len(writes) == 1:
        return keys
    if not writes:
        raise Invalid("a commit has at least one write")
    checks = len([write for write in writes if isinstance(write, Check)])
    if _too_many(writes, len(writes) - checks) or len(writes) > OPERATIONS_MOST:
        raise Invalid(
            f"{len(writes) - checks} writes and {checks} checks in one commit; at most {WRITES_MOST} writes "
            f"are allowed, {OPERATIONS_MOST} with checks",
            hint="split the commit",
        )
    if len(set(keys)) < len(keys):
        raise Invalid(f"{Counter(keys).most_common(1)[0][0]} is written twice in one commit")
    return keys


def _too_many(writes: Sequence[Write], changes: int) -> bool:
    """Return whether the commit has too many puts and deletes; one audit record does not count."""
    if changes <= WRITES_MOST:
        return False
    audits = len([write for write in writes if isinstance(write, Put) and write.value.kind == "audit"])
    return audits > 1 or changes - audits > WRITES_MOST


def filtered(change: Change, where: Filter) -> Change | None:
    """Return the change as a watcher with this filter receives it; None if it is not delivered."""
    if where is ALL or change.bookmark:
        return change
    before = change.before if change.before is not None and where.matches(change.before) else None
    after = change.after if change.after is not None and where.matches(change.after) else None
    if before is None and after is None:
        return None
    if before is change.before and after is change.after:
        return change
    return Change(change.revision, before, after, size=change.size)


def filtered_all(changes: Sequence[Change], where: Filter) -> list[Change]:
    """Return the changes that a watcher with this filter receives, in order.

    Labels are compared first, which rejects most changes at little cost.
    """
    for key, wanted in where.labels.items():
        changes = [
            each
            for each in changes
            if (each.after is not None and each.after.meta.labels.get(key) == wanted)
            or (each.before is not None and each.before.meta.labels.get(key) == wanted)
            or each.bookmark
        ]
    return [seen for each in changes if (seen := filtered(each, where)) is not None]
