"""Objects of one kind, sorted by key, so that listing a hundred thousand objects sorts nothing."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import chain

from mandor.lib.steps import TURN, Steps
from mandor.model.meta import Object
from mandor.store.base import KeyTuple

BLOCK_MOST = 1024  # keys per block
NEW_MOST = 1024  # added keys that wait to be merged
STALE_MOST = 2048  # changed keys that wait to be marked
RUN_LEAST = 32
"""New keys in a block from which on sorting it is cheaper than inserting each."""
ROUNDS = 2
"""Passes of a refresh over the blocks: the second handles what changed during the first."""
PATCHED_MOST = 64
"""Changed objects of a block that are replaced one by one; with more, the block is rebuilt."""


class Block:
    """Consecutive keys and a cached list of their objects."""

    __slots__ = ("items", "keys", "stale")

    def __init__(self, keys: list[KeyTuple]) -> None:
        self.keys = keys
        self.items: list[Object] | None = None
        self.stale: list[KeyTuple] = []
        """Keys whose cached objects are outdated."""

    def touch(self, key: KeyTuple) -> None:
        if self.items is not None:
            self.stale.append(key)
            if len(self.stale) > PATCHED_MOST:
                self.forget()

    def forget(self) -> None:
        self.items = None
        self.stale.clear()

    def fresh(self, objects: Mapping[KeyTuple, Object]) -> list[Object]:
        """Return the current objects of the block."""
        if self.items is None:
            self.items = [objects[key] for key in self.keys]
        elif self.stale:
            for key in self.stale:
                self.items[bisect_left(self.keys, key)] = objects[key]
            self.stale.clear()
        return self.items

    def remove(self, key: KeyTuple) -> None:
        at = bisect_left(self.keys, key)
        del self.keys[at]
        if self.items is not None:
            del self.items[at]
        if self.stale:
            self.stale = [each for each in self.stale if each != key]


class SortedObjects:
    """A sorted set of keys in blocks.

    Writers only record what they changed; it is merged on the next listing, or when many changes
    have accumulated. A listing rebuilds only the blocks that changed.
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._lasts: list[KeyTuple] = []
        self._new: list[KeyTuple] = []
        self._stale: list[KeyTuple] = []
        self._listed = False
        """Whether any block has a cached list of objects."""
        self._refreshing = 0
        """Refreshes in progress; blocks keep their cached lists meanwhile."""
        self._items: list[Object] | None = None
        self._keys: list[KeyTuple] | None = None
        """The last results, shared between callers until a change; never modified."""

    def add(self, key: KeyTuple) -> None:
        """Add a key that is not in the set."""
        self._new.append(key)
        self._items = self._keys = None
        if len(self._new) >= NEW_MOST:
            self._settle()

    def touch(self, key: KeyTuple) -> None:
        """Record that the object of this key was replaced."""
        self._items = None
        if self._listed:
            self._stale.append(key)
            if len(self._stale) >= STALE_MOST:
                (self._settle if self._refreshing else self._forget)()

    def remove(self, key: KeyTuple) -> None:
        """Remove a key that is in the set."""
        self._settle()
        self._items = self._keys = None
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        block.remove(key)
        if block.keys:
            self._lasts[place] = block.keys[-1]
        else:
            del self._blocks[place], self._lasts[place]

    @property
    def latest(self) -> Sequence[Object] | None:
        """The result of `items` if nothing changed since its last call, else None."""
        return self._items

    def items(self, objects: Mapping[KeyTuple, Object]) -> Sequence[Object]:
        """Return all objects in order; the same list until something changes."""
        if self._items is None:
            self._settle()
            self._listed = True
            self._items = list(chain.from_iterable([block.fresh(objects) for block in self._blocks]))
        return self._items

    def between(self, objects: Mapping[KeyTuple, Object], first: KeyTuple, end: KeyTuple) -> list[Object]:
        """Return the objects from `first` up to, but not including, `end`."""
        self._settle()
        self._listed = True
        found: list[Object] = []
        for block in self._of(first, end):
            fresh = block.fresh(objects)
            inside = block.keys[0] >= first and block.keys[-1] < end
            found += fresh if inside else fresh[bisect_left(block.keys, first) : bisect_left(block.keys, end)]
        return found

    def refresh(self, objects: Mapping[KeyTuple, Object], first: KeyTuple, end: KeyTuple) -> Steps[None]:
        """Do the work of `items` and `between` in small steps; only later changes are left for them."""
        self._refreshing += 1
        done = 0
        try:
            for _ in range(ROUNDS):
                self._settle()
                self._listed = True
                place = bisect_left(self._lasts, first)
                while place < len(self._blocks) and (block := self._blocks[place]).keys[0] < end:
                    if block.items is None or block.stale:
                        looks = 2 * len(block.keys) if block.items is None else 4 * len(block.stale)
                        block.fresh(objects)
                        done += looks
                        yield looks
                    place += 1
            if done >= TURN:
                yield TURN  # concatenating the blocks is a step of its own
        finally:
            self._refreshing -= 1

    def keys(self) -> Sequence[KeyTuple]:
        """Return all keys in order; the same list until a key is added or removed."""
        if self._keys is None:
            self._settle()
            self._keys = list(chain.from_iterable([block.keys for block in self._blocks]))
        return self._keys

    def _of(self, first: KeyTuple, end: KeyTuple) -> list[Block]:
        """Return the blocks that may contain keys between `first` and `end`."""
        return self._blocks[bisect_left(self._lasts, first) : bisect_left(self._lasts, end) + 1]

    def _settle(self) -> None:
        if self._new:
            new, self._new = sorted(self._new), []
            self._merge(new)
        for key in self._stale:
            place = bisect_left(self._lasts, key)
            if place < len(self._blocks):
                self._blocks[place].touch(key)
        self._stale.clear()

    def _forget(self) -> None:
        """Drop all cached lists: too much changed since the last listing."""
        for block in self._blocks:
            block.forget()
        self._stale.clear()
        self._listed = False

    def _merge(self, new: list[KeyTuple]) -> None:
        if not self._blocks:
            self._blocks, self._lasts = [Block([])], [new[-1]]
        start = 0
        while start < len(new):
            place = min(bisect_left(self._lasts, new[start]), len(self._blocks) - 1)
            last = place == len(self._blocks) - 1
            end = len(new) if last else bisect_right(new, self._lasts[place], start)
            self._insert(place, new[start:end])
            start = end

    def _insert(self, place: int, run: list[KeyTuple]) -> None:
        block = self._blocks[place]
        keys = block.keys
        block.forget()
        if len(run) > RUN_LEAST:
            keys += run
            keys.sort()  # merges the two sorted runs
        else:
            for key in run:
                insort(keys, key)
        parts = [keys]
        if len(keys) > BLOCK_MOST:
            half = BLOCK_MOST // 2
            parts = [keys[start : start + half] for start in range(0, len(keys), half)]
            self._blocks[place : place + 1] = [Block(part) for part in parts]
        self._lasts[place : place + 1] = [part[-1] for part in parts]
