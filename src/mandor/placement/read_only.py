"""A read-only view of a list."""

from collections.abc import Iterator, Sequence
from typing import overload

from mandor.model.node import Node


class ReadOnlyList(Sequence[Node]):
    """The current content of a list, without methods that change it."""

    __slots__ = ("_items",)

    def __init__(self, items: list[Node]) -> None:
        self._items = items

    @overload
    def __getitem__(self, index: int) -> Node: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Node]: ...

    def __getitem__(self, index: int | slice) -> Node | Sequence[Node]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._items)
