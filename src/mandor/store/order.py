"""Keys kept in order, so that listing a hundred thousand objects does not sort them all."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain

from mandor.model.meta import Key

BLOCK_MOST = 1024


class OrderedKeys:
    """A sorted set of keys. A new key is put in its place only when somebody asks for the order.

    The keys are in blocks: a few new ones move a block each, many are merged with all the others.
    """

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []
        self._lasts: list[Key] = []
        self._new: list[Key] = []
        self._size = 0

    def add(self, key: Key) -> None:
        """The key must not be there yet."""
        self._new.append(key)

    def remove(self, key: Key) -> None:
        """The key must be there."""
        self._settle()
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        del block[bisect_left(block, key)]
        self._size -= 1
        if block:
            self._lasts[place] = block[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def __iter__(self) -> Iterator[Key]:
        self._settle()
        return chain.from_iterable(self._blocks)

    def since(self, first: Key) -> Iterator[Key]:
        """The keys from `first` on, itself included if it is there."""
        self._settle()
        place = bisect_left(self._lasts, first)
        if place < len(self._blocks):
            block = self._blocks[place]
            yield from block[bisect_left(block, first) :]
            for block in self._blocks[place + 1 :]:
                yield from block

    def _settle(self) -> None:
        if not self._new:
            return
        new, self._new = self._new, []
        self._size += len(new)
        if len(new) * 8 > self._size:
            # Python's sort merges what is sorted already.
            keys = sorted(chain(chain.from_iterable(self._blocks), sorted(new)))
            half = BLOCK_MOST // 2
            self._blocks = [keys[start : start + half] for start in range(0, len(keys), half)]
            self._lasts = [block[-1] for block in self._blocks]
            return
        for key in new:
            self._insert(key)

    def _insert(self, key: Key) -> None:
        place = min(bisect_left(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[place]
        insort(block, key)
        if len(block) > BLOCK_MOST:
            half = len(block) // 2
            self._blocks[place : place + 1] = [block[:half], block[half:]]
            self._lasts[place : place + 1] = [block[half - 1], block[-1]]
        else:
            self._lasts[place] = block[-1]
