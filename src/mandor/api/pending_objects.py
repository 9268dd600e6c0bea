"""PendingObjects: the objects that one request writes, seen together with the stored ones.

A request may write thousands of objects, and each is checked against the others: lists, dependency cycles and placement
deadlocks are computed once per request.
"""

from collections.abc import Iterable
from typing import TypeVar, cast

from mandor.model.dependency_cycle import DependencyCycle, find_cycles
from mandor.model.meta import Key, Object
from mandor.model.near_cycle import Deadlock, find_deadlocks
from mandor.model.workload import Workload
from mandor.store.base import ALL, Filter, Store

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object


class PendingObjects:
    """A view of the store with the pending objects in it; lists of stored objects are cached for the request."""

    def __init__(self, store: Store, values: Iterable[Object]) -> None:
        self._store = store
        self._values = {each.key: each for each in values}
        self._by_place: dict[tuple[str, str], list[Object]] = {}
        """Pending objects by kind and namespace."""
        for key, each in self._values.items():
            self._by_place.setdefault((key.kind, key.namespace), []).append(each)
        self._lists: dict[tuple[str, str | None], list[Object]] = {}
        self._cycles: dict[str, dict[Key, DependencyCycle]] = {}
        self._deadlocks: dict[Key, Deadlock] | None = None

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def values(self) -> Iterable[Object]:
        return self._values.values()

    async def find(self, kind: type[O], key: Key) -> O | None:
        """Return the pending object of this key, or else the stored one."""
        found = self._values.get(key) or await self._store.get(key)
        return found if isinstance(found, kind) else None

    async def all(self, kind: type[O], namespace: str | None = None) -> list[O]:
        """Return the pending objects of a kind, followed by the stored ones that are not pending."""
        known = self._lists.get((kind.kind, namespace))
        if known is None:
            listing = await self._store.list(kind.kind, ALL if namespace is None else Filter(namespace=namespace))
            known = [
                each
                for (its_kind, space), place in self._by_place.items()
                if its_kind == kind.kind and namespace in (None, space)
                for each in place
            ]
            known += [each for each in listing.items if isinstance(each, kind) and each.key not in self._values]
            self._lists[kind.kind, namespace] = known
        return cast("list[O]", known)

    async def dependency_cycle(self, workload: Workload) -> DependencyCycle | None:
        """Return the cycle of `depends_on` that is reported at this workload, the first of the cycle's pending ones."""
        space = workload.meta.namespace
        if space not in self._cycles:
            found = find_cycles(await self.all(Workload, space))
            self._cycles[space] = {each.workload.key: each for each in reversed(found)}
        return self._cycles[space].get(workload.key)

    async def placement_deadlock(self, workload: Workload) -> Deadlock | None:
        """Return the deadlock of `near` rules that is reported at this workload."""
        if self._deadlocks is None:
            found = find_deadlocks(await self.all(Workload))
            self._deadlocks = {each.workload.key: each for each in reversed(found)}
        return self._deadlocks.get(workload.key)
