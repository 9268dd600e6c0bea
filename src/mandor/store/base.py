"""The store interface: four verbs over versioned objects.

* Revisions only grow, across all kinds.
* What you read is yours to keep and nobody's to change: objects are frozen.
* A commit that returned is durable, and every later read and watch of this store shows it.
* A watcher sees every change after `since`, in order, once. If the store no longer
  has them it raises `Expired`; the watcher lists again and goes on.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from msgspec import Struct

from mandor.errors import Invalid
from mandor.model.meta import Key, Object

Place = tuple[str, ...]
"""A key by which objects are filed. Equal to the `Key`, but a plain tuple: of those there may be millions."""

_new_tuple = tuple.__new__

WRITES_MOST = 100
"""The most objects one commit puts and deletes, in every home."""
LARGE_BYTES = 4096
"""What is smaller is counted, not weighed, where it waits for readers."""
OPERATIONS_MOST = 128
"""The most writes of one commit with its checks: room for a leader's fence on top of a full one. etcd's own bound."""


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
    """Which objects a list or watch is about; everything given must match."""

    namespace: str | None = None
    node: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    """For a list or watch of every kind: only of these; empty: of all."""
    supplies: bool = False
    """For a watch of instances: before one that is to begin come the release and the workload that it needs, as changes
    at its revision, if reading them would take another way to the store. No matter for what matches."""

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
    """Watch from here to miss nothing."""
    places: Sequence[Place] = ()
    """Where the items stand, if the store has that at hand; see `Change.place`."""


class Change(Struct, gc=False):
    """What a watcher sees. Created: no `before`. Deleted: no `after`. Neither: a bookmark."""

    revision: int
    before: Object | None
    after: Object | None
    line: bytes | None = None
    """Its form on the wire, kept by whoever needed it first: one change goes to thousands of watchers."""
    place: Place | None = None
    """Its key as a plain tuple, which an index and its mirrors share and the garbage collector leaves alone."""
    size: int = 0
    """The bytes of `after` as its home keeps it, if they are more than `LARGE_BYTES`."""

    @property
    def bookmark(self) -> bool:
        return self.before is None and self.after is None

    @property
    def value(self) -> Object:
        found = self.before if self.after is None else self.after
        assert found is not None, "a bookmark has no value"
        return found

    @property
    def of_status(self) -> bool:
        """What is wanted of it is the very same as before: who looks at that alone has seen it. (A store that reads
        objects anew cannot tell, and then it is False.)"""
        before, after = self.before, self.after
        if before is None or after is None or before.spec is not after.spec:
            return False
        return before.meta.uid == after.meta.uid and before.meta.labels == after.meta.labels

    @property
    def key(self) -> Key:
        return self.value.key if self.place is None else _new_tuple(Key, self.place)


class Store(ABC):
    """Use as `async with`: leaving the block closes it."""

    @abstractmethod
    async def get(self, key: Key) -> Object | None: ...

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        """Each as `get` answers; one question where that is less than one for each."""
        return await asyncio.gather(*map(self.get, keys))

    @abstractmethod
    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        """All objects of a kind (None: of every kind), as they were at one revision, ordered by key."""

    def latest(self, kind: str) -> Sequence[Object] | None:
        """What was listed last of a whole kind, if that is known to hold; the very same as long as nothing changes."""
        return None

    @abstractmethod
    async def commit(self, *writes: Write) -> int:
        """Apply all writes or none; return the new revision.

        Raise `Conflict` (with the facts `key` and `version`, the one that won) when any object
        has moved on since it was read, `Unavailable` when it is not known to be stored.
        """

    @abstractmethod
    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        """Each change after `since`, in order, once; those of a burst come together.

        With a filter, a change is delivered if before or after matches, and leaving the filter
        looks like a deletion. Bookmarks say that nothing up to their revision was missed.
        """

    async def ailments(self) -> Sequence[str]:
        """What is wrong with it although it answers, and what to do about it."""
        return ()

    def side_door(self) -> "SideDoor | None":
        """A way in that waits for nothing this process does; None: nobody but this process can come in at all."""
        return None

    async def close(self) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SideDoor(ABC):
    """For threads, and closed with the store: its calls block, for so many seconds at most."""

    @abstractmethod
    def get(self, key: Key, seconds: float) -> Object | None:
        """As it is stored at this moment, whatever this process has seen."""

    @abstractmethod
    def commit(self, *writes: Write, seconds: float) -> int:
        """As `Store.commit`, but for the facts of a conflict."""


def check_writes(writes: Sequence[Write]) -> list[Key]:
    """The keys of the writes; what every home refuses is refused in the same words."""
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
            hint="split it",
        )
    if len(set(keys)) < len(keys):
        raise Invalid(f"{Counter(keys).most_common(1)[0][0]} stands in one commit twice")
    return keys


def _too_many(writes: Sequence[Write], changes: int) -> bool:
    """The audit record of a commit comes on top of what the commit may write."""
    if changes <= WRITES_MOST:
        return False
    audits = len([write for write in writes if isinstance(write, Put) and write.value.kind == "audit"])
    return audits > 1 or changes - audits > WRITES_MOST


def filtered(change: Change, where: Filter) -> Change | None:
    """The change as a watcher with this filter sees it; None: not at all."""
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
    """As `filtered` of each, in their order. Who looks for a label finds it on few: the others are passed over at
    once, and of those there may be thousands in a second."""
    for key, wanted in where.labels.items():
        changes = [
            each
            for each in changes
            if (each.after is not None and each.after.meta.labels.get(key) == wanted)
            or (each.before is not None and each.before.meta.labels.get(key) == wanted)
            or each.bookmark
        ]
    return [seen for each in changes if (seen := filtered(each, where)) is not None]
