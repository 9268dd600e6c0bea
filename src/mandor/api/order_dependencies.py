"""Order dependencies: the objects that a node needs to start an instance, such as its release and namespace.

A watch sends them before the instance, so that thousands of nodes do not have to request them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from mandor.model.codec import encode
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.record import Namespace
from mandor.model.workload import Release
from mandor.store.base import Change, Store

CACHED_MOST = 4_096
"""Encoded objects that are cached for all streams."""
SENT_MOST = 1_024
"""Objects that a stream remembers as sent; others are sent again."""


class OrderDependency(NamedTuple):
    value: Object
    since: int
    """The version of its last change that matters to a node."""
    line: bytes


class OrderDependencyCache:
    """Dependencies encoded once for all streams."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[Key, OrderDependency] = {}

    async def get(self, key: Key) -> OrderDependency | None:
        """Return the current object, encoded; None: it does not exist."""
        value, known = await self._store.get(key), self._known.pop(key, None)
        if value is None:
            return None
        if known is None or not _same(known.value, value):
            known = OrderDependency(value, value.meta.version, b'{"supply":%b}\n' % encode(value))
        elif known.value is not value:
            known = known._replace(value=value)
        if len(self._known) >= CACHED_MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = known
        return known


class OrderDependencySender:
    """Selects the dependencies that one stream has not sent yet in their current form."""

    def __init__(self, cache: OrderDependencyCache) -> None:
        self._cache = cache
        self._sent: dict[Key, int] = {}

    async def lines(self, changes: Sequence[Change]) -> list[bytes]:
        """Return the lines of dependencies of the changed instances that were not sent yet."""
        found = []
        for key in {key for each in changes if isinstance(each.after, Instance) for key in each.after.start_keys}:
            dependency = await self._cache.get(key)
            if dependency is not None and self._sent.get(key) != dependency.since:
                if len(self._sent) >= SENT_MOST:
                    self._sent.clear()
                self._sent[key] = dependency.since
                found.append(dependency.line)
        return found


def _same(before: Object, after: Object) -> bool:
    """Return whether two versions are the same for a node that starts an instance."""
    if before is after:
        return True
    if isinstance(after, Namespace | Release) and before.status != after.status:
        return False
    same = before.meta.uid == after.meta.uid and before.labels == after.labels
    return same and (before.spec is after.spec or before.spec == after.spec)
