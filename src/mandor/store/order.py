"""The objects of a kind in the order of their keys, so that listing a hundred thousand sorts nothing."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from mandor.model.meta import Object
from mandor.store.base import Place

BLOCK_MOST = 1024
NEW_MOST = 1024
STALE_MOST = 2048
RUN_LEAST = 32
"""From so many new keys on, sorting a block costs less than putting each in its place."""


class Block:
    """Some keys that follow each other, and their objects as they were when last asked for."""

    __slots__ = ("items", "keys")

    def __init__(self, keys: list[Place]) -> None:
        self.keys = keys
        self.items: list[Object] | None = None


class Order:
    """A sorted set of keys in blocks.

    Writers only note what they did; it is put in its place when somebody lists, or when much of it
    has gathered. A listing builds anew only the blocks in which something changed.
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lasts: list[Place] = []
        self._new: list[Place] = []
        self._stale: list[Place] = []
        self._listed = False
        """Some block remembers its objects."""
        self._items: list[Object] | None = None
        self._keys: list[Place] | None = None
        """What was given out last, while that holds; nobody changes it."""

    def add(self, key: Place) -> None:
        """The key must not be there yet."""
        self._new.append(key)
        self._items = self._keys = None
        if len(self._new) >= NEW_MOST:
            self._settle()

    def touch(self, key: Place) -> None:
        """The object under this key is another one now."""
        self._items = None
        if self._listed:
            self._stale.append(key)
            if len(self._stale) >= STALE_MOST:
                self._forget()

    def remove(self, key: Place) -> None:
        """The key must be there."""
        self._settle()
        self._items = self._keys = None
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        del block.keys[bisect_left(block.keys, key)]
        block.items = None
        if block.keys:
            self._lasts[place] = block.keys[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def items(self, objects: Mapping[Place, Object]) -> Sequence[Object]:
        """All objects in order, as they are now; the very same list as long as nothing changes."""
        if self._items is None:
            self._settle()
            self._listed = True
            for block in self._blocks:
                if block.items is None:
                    block.items = [objects[key] for key in block.keys]
            self._items = list(chain.from_iterable([block.items for block in self._blocks if block.items is not None]))
        return self._items

    def keys(self) -> Sequence[Place]:
        """All keys in order, as they are now; the very same list as long as there are no others."""
        if self._keys is None:
            self._settle()
            self._keys = list(chain.from_iterable([block.keys for block in self._blocks]))
        return self._keys

    def since(self, first: Place) -> Iterator[Place]:
        """The keys from `first` on, itself included if it is there."""
        self._settle()
        place = bisect_left(self._lasts, first)
        if place < len(self._blocks):
            keys = self._blocks[place].keys
            yield from keys[bisect_left(keys, first) :]
            for block in self._blocks[place + 1 :]:
                yield from block.keys

    def _settle(self) -> None:
        if self._new:
            new, self._new = sorted(self._new), []
            self._merge(new)
        for key in self._stale:
            place = bisect_left(self._lasts, key)
            if place < len(self._blocks):
                self._blocks[place].items = None
        self._stale.clear()

    def _forget(self) -> None:
        """So much has changed since the last listing that the next one builds everything anew."""
        for block in self._blocks:
            block.items = None
        self._stale.clear()
        self._listed = False

    def _merge(self, new: list[Place]) -> None:
        if not self._blocks:
            self._blocks, self._lasts = [Block([])], [new[-1]]
        start = 0
        while start < len(new):
            place = min(bisect_left(self._lasts, new[start]), len(self._blocks) - 1)
            last = place == len(self._blocks) - 1
            end = len(new) if last else bisect_right(new, self._lasts[place], start)
            self._insert(place, new[start:end])
            start = end

    def _insert(self, place: int, run: list[Place]) -> None:
        block = self._blocks[place]
        keys, block.items = block.keys, None
        if len(run) > RUN_LEAST:
            keys += run
            keys.sort()  # which merges what is sorted already
        else:
            for key in run:
                insort(keys, key)
        parts = [keys]
        if len(keys) > BLOCK_MOST:
            half = BLOCK_MOST // 2
            parts = [keys[start : start + half] for start in range(0, len(keys), half)]
            self._blocks[place : place + 1] = [Block(part) for part in parts]
        self._lasts[place : place + 1] = [part[-1] for part in parts]
