"""Controller: maps changes to keys, and reconciles one key at a time."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import ClassVar, Generic, TypeVar

from mandor.model.meta import Object
from mandor.store.base import Change
from mandor.store.mirror import Mirror

K = TypeVar("K", bound=Hashable)
G = TypeVar("G", bound=Hashable)
O = TypeVar("O", bound=Object)  # noqa: E741 - O for object


class Controller(ABC, Generic[K]):
    """Level-triggered: `reconcile` compares wanted and current state, from memory, and writes the difference."""

    name: ClassVar[str]
    watches: ClassVar[tuple[str, ...]]
    """Kinds to mirror; every change of them is passed to `observe`."""
    workers: ClassVar[int] = 4

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        """Called once, before the first change is observed."""

    def first(self) -> Iterable[K]:
        """Keys to reconcile at the start, whatever the store holds."""
        return ()

    def observe(self, change: Change) -> Iterable[K]:
        """Return the keys to reconcile because of this change."""
        return ()

    def observe_all(self, changes: Sequence[Change]) -> Iterable[K]:
        """Return the keys for several changes of one kind. Override it to skip irrelevant changes cheaply: thousands of
        instances can change in a second."""
        if len(changes) == 1:
            return in_order(self.observe(changes[0]))
        return {key: None for change in changes for key in in_order(self.observe(change))}

    def subject(self, key: K) -> Object | None:
        """Return the object of a key; its reconciliation continues the trace that wrote the object."""
        return None

    @abstractmethod
    async def reconcile(self, key: K) -> float | None:
        """Write what is missing; return the seconds until the next reconciliation, None: at the next change."""


def in_order(keys: Iterable[K]) -> Iterable[K]:
    """Return the keys in a deterministic order, also for a set."""
    if type(keys) is tuple:  # the most frequent case; an isinstance check of an abstract class is slower
        return keys
    return sorted(keys, key=repr) if isinstance(keys, Set) and len(keys) > 1 else keys


class Grouped(Generic[G, O]):
    """Index of objects by group, updated on every change; `by` returns None for objects without a group."""

    def __init__(self, by: Callable[[O], G | None]) -> None:
        self._by = by
        self._groups: dict[G, dict[str, O]] = {}

    def update(self, before: O | None, after: O | None) -> None:
        old = self._by(before) if before is not None else None
        new = self._by(after) if after is not None else None
        if new is not None and after is not None and (old == new or before is None):
            self.change(new, before, after)
            return
        if old is not None and before is not None and old in self._groups:
            self._groups[old].pop(before.meta.uid, None)
            if not self._groups[old]:
                del self._groups[old]
        if new is not None and after is not None:
            self._groups.setdefault(new, {})[after.meta.uid] = after

    def change(self, group: G, before: O | None, after: O) -> None:
        """Update an object that stays in its group, which the caller has determined."""
        members = self._groups.get(group)
        if members is None:
            members = self._groups[group] = {}
        elif before is not None and before.meta.uid != after.meta.uid:
            members.pop(before.meta.uid, None)
        members[after.meta.uid] = after

    def forget(self, group: G) -> None:
        self._groups.pop(group, None)

    def of(self, group: G) -> list[O]:
        return list(self._groups.get(group, {}).values())

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def __iter__(self) -> Iterator[G]:
        return iter(self._groups)

    def __contains__(self, group: object) -> bool:
        return group in self._groups
