"""The objects of a kind in the order of their keys, so that listing a hundred thousand sorts nothing."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from mandor.model.meta import Key, Object

BLOCK_MOST = 1024
NEW_MOST = 1024
STALE_MOST = 2048


class Block:
    """Some keys that follow each other, and their objects as they were when last asked for."""

    __slots__ = ("items", "keys")

    def __init__(self, keys: list[Key]) -> None:
        self.keys = keys
        self.items: list[Object] | None = None


class Order:
    """A sorted set of keys in blocks.

    Writers only note what they did; it is put in its place when somebody lists, or when much of it
    has gathered. A listing builds anew only the blocks in which something changed.
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lasts: list[Key] = []
        self._new: list[Key] = []
        self._stale: list[Key] = []

    def add(self, key: Key) -> None:
        """The key must not be there yet."""
        self._new.append(key)
        if len(self._new) >= NEW_MOST:
            self._settle()

    def touch(self, key: Key) -> None:
        """The object under this key is another one now."""
        self._stale.append(key)
        if len(self._stale) >= STALE_MOST:
            self._settle()

    def remove(self, key: Key) -> None:
        """The key must be there."""
        self._settle()
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        del block.keys[bisect_left(block.keys, key)]
        block.items = None
        if block.keys:
            self._lasts[place] = block.keys[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def items(self, objects: Mapping[Key, Object]) -> Sequence[Object]:
        """All objects in order; a copy."""
        self._settle()
        for block in self._blocks:
            if block.items is None:
                block.items = [objects[key] for key in block.keys]
        return list(chain.from_iterable([block.items for block in self._blocks if block.items is not None]))

    def keys(self) -> Sequence[Key]:
        """All keys in order; a copy."""
        self._settle()
        return list(chain.from_iterable([block.keys for block in self._blocks]))

    def since(self, first: Key) -> Iterator[Key]:
        """The keys from `first` on, itself included if it is there."""
        self._settle()
        place = bisect_left(self._lasts, first)
        if place < len(self._blocks):
            keys = self._blocks[place].keys
            yield from keys[bisect_left(keys, first) :]
            for block in self._blocks[place + 1 :]:
                yield from block.keys

    def _settle(self) -> None:
        for key in self._new:
            self._insert(key)
        self._new.clear()
        for key in self._stale:
            place = bisect_left(self._lasts, key)
            if place < len(self._blocks):
                self._blocks[place].items = None
        self._stale.clear()

    def _insert(self, key: Key) -> None:
        if not self._blocks:
            self._blocks, self._lasts = [Block([key])], [key]
            return
        place = min(bisect_left(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[place]
        keys = block.keys
        insort(keys, key)
        block.items = None
        if len(keys) > BLOCK_MOST:
            half = len(keys) // 2
            self._blocks[place : place + 1] = [Block(keys[:half]), Block(keys[half:])]
            self._lasts[place : place + 1] = [keys[half - 1], keys[-1]]
        else:
            self._lasts[place] = keys[-1]
