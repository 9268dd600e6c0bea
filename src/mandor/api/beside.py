"""Beside: what is stored in the same breath, and what holds for all of it together.

Thousands of objects may be, and each is looked at with regard to the others. So whatever is asked about all of them is
found out once.
"""

from collections.abc import Iterable
from typing import TypeVar, cast

from mandor.model.depends import Circle, find_circles
from mandor.model.meta import Key, Object
from mandor.model.near_cycle import Deadlock, find_deadlocks
from mandor.model.workload import Workload
from mandor.store.base import ALL, Filter, Store

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object


class Beside:
    """Lasts for one look at what is to be written: what is stored is remembered as it was when it was asked for."""

    def __init__(self, store: Store, values: Iterable[Object]) -> None:
        self._store = store
        self._values = {each.key: each for each in values}
        self._places: dict[tuple[str, str], list[Object]] = {}
        """By kind and namespace."""
        for key, each in self._values.items():
            self._places.setdefault((key.kind, key.namespace), []).append(each)
        self._known: dict[tuple[str, str | None], list[Object]] = {}
        self._circles: dict[str, dict[Key, Circle]] = {}
        self._deadlocks: dict[Key, Deadlock] | None = None

    def __contains__(self, key: Key) -> bool:
        return key in self._values

    def values(self) -> Iterable[Object]:
        return self._values.values()

    async def find(self, kind: type[O], key: Key) -> O | None:
        """As it is about to be, or is stored."""
        found = self._values.get(key) or await self._store.get(key)
        return found if isinstance(found, kind) else None

    async def all(self, kind: type[O], namespace: str | None = None) -> list[O]:
        """Those that are about to be stored, and then those that are and stay as they were."""
        known = self._known.get((kind.kind, namespace))
        if known is None:
            listing = await self._store.list(kind.kind, ALL if namespace is None else Filter(namespace=namespace))
            known = [
                each
                for (its_kind, space), place in self._places.items()
                if its_kind == kind.kind and namespace in (None, space)
                for each in place
            ]
            known += [each for each in listing.items if isinstance(each, kind) and each.key not in self._values]
            self._known[kind.kind, namespace] = known
        return cast("list[O]", known)

    async def circle(self, workload: Workload) -> Circle | None:
        """The one in which it waits for itself, if it is the first of those given who does."""
        space = workload.meta.namespace
        if space not in self._circles:
            found = find_circles(await self.all(Workload, space))
            self._circles[space] = {each.workload.key: each for each in reversed(found)}
        return self._circles[space].get(workload.key)

    async def deadlock(self, workload: Workload) -> Deadlock | None:
        if self._deadlocks is None:
            found = find_deadlocks(await self.all(Workload))
            self._deadlocks = {each.workload.key: each for each in reversed(found)}
        return self._deadlocks.get(workload.key)
