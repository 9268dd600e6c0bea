"""What lodgers take on each node, by priority: made when somebody first asks, then kept up where nodes change."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.ask import Shape
from mandor.placement.framework.kept import Kept
from mandor.placement.framework.lodging import Going, Level, Lodger
from mandor.placement.framework.snapshot import Amounts

LEVELS_MOST = 64
"""So many priorities are told apart; when there are more, near ones count as one."""
_COARSE = 2_000_001 // LEVELS_MOST + 1


class Levels:
    """`lodgers(slot)` and the rest are the table's own."""

    def __init__(
        self,
        kept: Kept,
        rows: Mapping[str, int],
        size: Callable[[], int],
        lodgers: Callable[[int], Iterable[Lodger]],
    ) -> None:
        self._kept = kept
        self._rows = rows
        self._size = size
        self._lodgers = lodgers
        self._taken: dict[int, Amounts] = {}
        self._going: Amounts = np.zeros((0, 0), dtype=np.int64)
        self._latest: NDArray[np.float64] = np.zeros(0)
        self._since = -1
        self._made_for: tuple[int, int, int] | None = None
        self._coarse = False

    def below(self, priority: int) -> list[Level]:
        self._bring_up()
        return [Level(each, taken) for each, taken in sorted(self._taken.items()) if each < priority]

    def going(self) -> Going:
        self._bring_up()
        return Going(self._going, self._latest)

    def _bring_up(self) -> None:
        made_for = (self._kept.numbering, len(self._rows), self._size())
        changed = self._kept.changes_since(self._since) if made_for == self._made_for else None
        if changed is None or len(changed) > max(512, made_for[2] // 4):
            self._made_for = made_for
            self._taken.clear()
            self._going = np.zeros((len(self._rows) + 1, made_for[2]), dtype=np.int64)
            self._latest = np.full(made_for[2], -np.inf)
            self._coarse = False
            self._fill(range(made_for[2]))
        elif len(changed):
            slots = sorted(set(changed.tolist()))
            for taken in (*self._taken.values(), self._going):
                taken[:, slots] = 0
            self._latest[slots] = -np.inf
            self._fill(slots)
        self._since = self._kept.now

    def _fill(self, slots: Iterable[int]) -> None:
        """Nearly all lodgers are like many others: each kind is added up for all nodes at once."""
        alike: dict[tuple[int | None, Shape], list[int]] = {}
        for slot in slots:
            for lodger in self._lodgers(slot):
                tenure = lodger.tenure
                if tenure.held or (tenure.rank.spared and tenure.until is None):
                    continue
                if tenure.until is not None:
                    self._latest[slot] = max(self._latest[slot], tenure.until)
                kind = (tenure.rank.priority if tenure.until is None else None, lodger.shape)
                there = alike.get(kind)
                if there is None:
                    alike[kind] = [slot]
                else:
                    there.append(slot)
        for (priority, shape), there in alike.items():
            taken = self._going if priority is None else self._level(priority)
            at, counts = np.unique(there, return_counts=True)
            for resource, amount in shape.wanted:
                taken[self._rows[resource], at] += amount * counts
            taken[-1, at] += counts

    def _level(self, priority: int) -> Amounts:
        found = self._taken.get(priority // _COARSE * _COARSE if self._coarse else priority)
        if found is not None:
            return found
        if len(self._taken) >= LEVELS_MOST and not self._coarse:
            self._merge()
            return self._level(priority)
        made: Amounts = np.zeros((len(self._rows) + 1, self._size()), dtype=np.int64)
        self._taken[priority // _COARSE * _COARSE if self._coarse else priority] = made
        return made

    def _merge(self) -> None:
        fine, self._taken, self._coarse = self._taken, {}, True
        for priority, taken in fine.items():
            self._level(priority)[:] += taken
