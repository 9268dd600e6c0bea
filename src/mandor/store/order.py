"""The objects of a kind in the order of their keys, so that listing a hundred thousand sorts nothing."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from itertools import chain

from mandor.lib.steps import TURN, Steps
from mandor.model.meta import Object
from mandor.store.base import Place

BLOCK_MOST = 1024
NEW_MOST = 1024
STALE_MOST = 2048
RUN_LEAST = 32
"""From so many new keys on, sorting a block costs less than putting each in its place."""
ROUNDS = 2
"""So often a refresh goes through the blocks: the second time only what changed during the first is left."""
PATCHED_MOST = 64
"""So many objects of a block are looked up one by one; if more have changed, all are."""


class Block:
    """Some keys that follow each other, and their objects as they were when last asked for."""

    __slots__ = ("items", "keys", "stale")

    def __init__(self, keys: list[Place]) -> None:
        self.keys = keys
        self.items: list[Object] | None = None
        self.stale: list[Place] = []
        """The objects of these are others by now."""

    def touch(self, key: Place) -> None:
        if self.items is not None:
            self.stale.append(key)
            if len(self.stale) > PATCHED_MOST:
                self.forget()

    def forget(self) -> None:
        self.items = None
        self.stale.clear()

    def fresh(self, objects: Mapping[Place, Object]) -> list[Object]:
        """Its objects, as they are now."""
        if self.items is None:
            self.items = [objects[key] for key in self.keys]
        elif self.stale:
            for key in self.stale:
                self.items[bisect_left(self.keys, key)] = objects[key]
            self.stale.clear()
        return self.items

    def remove(self, key: Place) -> None:
        at = bisect_left(self.keys, key)
        del self.keys[at]
        if self.items is not None:
            del self.items[at]
        if self.stale:
            self.stale = [each for each in self.stale if each != key]


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
        self._refreshing = 0
        """So many have their listing made little by little just now: the blocks are not forgotten meanwhile."""
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
                (self._settle if self._refreshing else self._forget)()

    def remove(self, key: Place) -> None:
        """The key must be there."""
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
        """What `items` would give, if nothing has changed since it was last asked."""
        return self._items

    def items(self, objects: Mapping[Place, Object]) -> Sequence[Object]:
        """All objects in order, as they are now; the very same list as long as nothing changes."""
        if self._items is None:
            self._settle()
            self._listed = True
            self._items = list(chain.from_iterable([block.fresh(objects) for block in self._blocks]))
        return self._items

    def between(self, objects: Mapping[Place, Object], first: Place, end: Place) -> list[Object]:
        """As `items`: from `first` on, without `end` and what follows it."""
        self._settle()
        self._listed = True
        found: list[Object] = []
        for block in self._of(first, end):
            fresh = block.fresh(objects)
            inside = block.keys[0] >= first and block.keys[-1] < end
            found += fresh if inside else fresh[bisect_left(block.keys, first) : bisect_left(block.keys, end)]
        return found

    def refresh(self, objects: Mapping[Place, Object], first: Place, end: Place) -> Steps[None]:
        """What `items` and `between` would do, little by little: they are left with what changes meanwhile."""
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
                yield TURN  # to put them together is a step of its own
        finally:
            self._refreshing -= 1

    def keys(self) -> Sequence[Place]:
        """All keys in order, as they are now; the very same list as long as there are no others."""
        if self._keys is None:
            self._settle()
            self._keys = list(chain.from_iterable([block.keys for block in self._blocks]))
        return self._keys

    def _of(self, first: Place, end: Place) -> list[Block]:
        """The blocks in which keys between them stand."""
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
        """So much has changed since the last listing that the next one builds everything anew."""
        for block in self._blocks:
            block.forget()
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
        keys = block.keys
        block.forget()
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
