"""What a controller is: it looks at changes and says whose they are; it reconciles one key at a time."""

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

    def observe_all(self, changes: Sequence[Change]) -> Iterable[K]:
        """As `observe`, for some changes of one kind. Of instances, thousands may change in a second: whoever has
        nothing to say about nearly all of them says so here, at once."""
        if len(changes) == 1:
            return in_order(self.observe(changes[0]))
        return {key: None for change in changes for key in in_order(self.observe(change))}

    def subject(self, key: K) -> Object | None:
        """The object that a key is about, for traces: what is done because of it belongs to the trace that wrote it."""
        return None

    def steady(self, key: K) -> bool:
        """Asked when the pause of `reconcile` is over: whether it would find what it found, and do nothing."""
        return False

    @abstractmethod
    async def reconcile(self, key: K) -> float | None:
        """Make it so. The result: look again after so many seconds, even if nothing changes."""


def in_order(keys: Iterable[K]) -> Iterable[K]:
    """Of a set, too: the same changes lead to the same steps, in any process."""
    if type(keys) is tuple:  # nearly always, and asking an abstract class takes longer
        return keys
    return sorted(keys, key=repr) if isinstance(keys, Set) and len(keys) > 1 else keys


class Grouped(Generic[G, O]):
    """Objects by a group they belong to, kept up to date by changes; `by` answers None for none."""

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
        """As `update`, of one that stays in its group, which the caller knows."""
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
        """How many groups there are."""
        return len(self._groups)

    def __iter__(self) -> Iterator[G]:
        return iter(self._groups)

    def __contains__(self, group: object) -> bool:
        return group in self._groups
