"""What a controller is: it looks at changes and says whose they are; it reconciles one key at a time."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import ClassVar, Generic, TypeVar

from mandor.model.meta import Key, Object
from mandor.store.base import Change
from mandor.store.mirror import Mirror

K = TypeVar("K", bound=Hashable)
G = TypeVar("G", bound=Hashable)
O = TypeVar("O", bound=Object)  # noqa: E741 - O for object


class Controller(ABC, Generic[K]):
    """Level-triggered: `reconcile` reads what is so now, from memory, and writes what is missing for what is wanted."""

    name: ClassVar[str]
    watches: ClassVar[tuple[str, ...]]
    """Kinds it reads; each is mirrored, and every change of one goes through `observe`."""
    workers: ClassVar[int] = 4

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        """Called once, before the first change is observed."""

    def first(self) -> Iterable[K]:
        """Keys to reconcile at the start, whatever the store holds."""
        return ()

    def observe(self, change: Change) -> Iterable[K]:
        """The keys that this change concerns."""
        return ()

    @abstractmethod
    async def reconcile(self, key: K) -> float | None:
        """Make it so. The result: look again after so many seconds, even if nothing changes."""


class Grouped(Generic[G, O]):
    """Objects by a group they belong to, kept up to date by changes."""

    def __init__(self, kind: type[O]) -> None:
        self._kind = kind
        self._groups: dict[G, dict[Key, O]] = {}

    def update(self, key: Key, before: G | None, after: G | None, value: O | None) -> None:
        if before is not None and before != after:
            group = self._groups.get(before)
            if group is not None:
                group.pop(key, None)
                if not group:
                    del self._groups[before]
        if after is not None and value is not None:
            self._groups.setdefault(after, {})[key] = value

    def of(self, group: G) -> list[O]:
        return list(self._groups.get(group, {}).values())

    def __iter__(self) -> Iterator[G]:
        return iter(self._groups)

    def __contains__(self, group: object) -> bool:
        return group in self._groups
