"""Keys kept in order, so that listing a hundred thousand objects sorts nothing."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import chain

from mandor.model.meta import Key

BLOCK_MOST = 1024


class OrderedKeys:
    """A sorted set of keys in blocks: adding one moves at most a block, not the whole list."""

    def __init__(self) -> None:
        self._blocks: list[list[Key]] = []
        self._lasts: list[Key] = []

    def __iter__(self) -> Iterator[Key]:
        return chain.from_iterable(self._blocks)

    def add(self, key: Key) -> None:
        """The key must not be there yet."""
        if not self._blocks:
            self._blocks.append([key])
            self._lasts.append(key)
            return
        place = min(bisect_left(self._lasts, key), len(self._blocks) - 1)
        block = self._blocks[place]
        insort(block, key)
        if len(block) > BLOCK_MOST:
            half = len(block) // 2
            self._blocks[place : place + 1] = [block[:half], block[half:]]
            self._lasts[place : place + 1] = [block[half - 1], block[-1]]
        else:
            self._lasts[place] = block[-1]

    def remove(self, key: Key) -> None:
        """The key must be there."""
        place = bisect_left(self._lasts, key)
        block = self._blocks[place]
        del block[bisect_left(block, key)]
        if block:
            self._lasts[place] = block[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def since(self, first: Key) -> Iterator[Key]:
        """The keys from `first` on, itself included if it is there."""
        place = bisect_left(self._lasts, first)
        if place < len(self._blocks):
            block = self._blocks[place]
            yield from block[bisect_left(block, first) :]
            for block in self._blocks[place + 1 :]:
                yield from block
