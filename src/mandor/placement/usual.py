"""The usual plugins of room in one go: does it fit, is the node empty, is it used evenly, in Kubernetes' numbers.

What they say one by one stands in `plugins/`; here it is the same arithmetic on `Room`, for one node or for many, in as
few steps as can be.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.ask import CPU, MEMORY, Ask
from mandor.placement.framework.kept import At
from mandor.placement.framework.points import SCORE_MOST, FilterPlugin, Formula, ScorePlugin
from mandor.placement.framework.room import Floats
from mandor.placement.framework.snapshot import Amounts, Snapshot

NOWHERE = -1
Totals = NDArray[np.signedinteger]
_AT_ONCE = 4096
"""So many nodes are computed together: what lies between the steps stays in the processor's cache."""
_HALF = SCORE_MOST / 2


class Usual:
    """Of one shape; `fit`, `least` and `balanced` are the weights of those who have a say, 0 of those who have not."""

    __slots__ = ("_both", "_fit", "_more", "_others", "_spare", "_used", "balanced", "least")

    def __init__(self, ask: Ask, nodes: Snapshot, *, fit: bool, least: int, balanced: int) -> None:
        shape, wanted = ask.shape, dict(ask.shape.wanted)
        cpu, memory = wanted.pop(CPU, 0), wanted.pop(MEMORY, 0)
        self.least, self.balanced = least, balanced
        self._fit = fit
        self._both = fit and cpu > 0 and memory > 0
        self._spare = float(-SCORE_MOST * shape.counted[0]), float(-SCORE_MOST * shape.counted[1])
        self._used = float(cpu), float(memory)
        self._more = np.array([*self._spare, *self._used])[:, np.newaxis]
        self._others = [(nodes.rows.get(name), amount) for name, amount in wanted.items()] if fit else []

    def one(self, nodes: Snapshot, slot: int) -> int:
        """The weighted sum for one node, or `NOWHERE`."""
        spare_cpu, spare_memory, used_cpu, used_memory, has_cpu, has_memory = nodes.room.shown[:, slot].tolist()
        share_cpu = (used_cpu + self._used[0]) / has_cpu
        share_memory = (used_memory + self._used[1]) / has_memory
        if self._fit:
            if (share_cpu > 1.0 and self._used[0]) or (share_memory > 1.0 and self._used[1]):
                return NOWHERE
            for row, amount in self._others:
                if row is None or nodes.free[row, slot] < amount:
                    return NOWHERE
        if not self._both:
            share_cpu, share_memory = min(share_cpu, 1.0), min(share_memory, 1.0)
        cpu = (spare_cpu + self._spare[0]) / has_cpu
        memory = (spare_memory + self._spare[1]) / has_memory
        least = (int(cpu) if cpu > 0.0 else 0) + (int(memory) if memory > 0.0 else 0) >> 1
        return self.least * least + self.balanced * int((2.0 - abs(share_cpu - share_memory)) * _HALF)

    def all(self, nodes: Snapshot, kind: np.dtype[np.signedinteger]) -> Totals:
        """For every node."""
        room = nodes.room.shown
        count = room.shape[1]
        totals = np.empty(count, dtype=kind)
        for first in range(0, count, _AT_ONCE):
            part = slice(first, min(first + _AT_ONCE, count))
            columns = room[:, part]
            totals[part] = self._totals(columns[:4] + self._more, columns[4:], nodes.free, part, kind)
        return totals

    def some(self, nodes: Snapshot, at: NDArray[np.intp], kind: np.dtype[np.signedinteger]) -> Totals:
        """For these nodes."""
        columns = nodes.room.shown.take(at, axis=1)
        values = columns[:4]
        values += self._more
        return self._totals(values, columns[4:], nodes.free, at, kind)

    def _totals(self, values: Floats, has: Floats, free: Amounts, at: At, kind: np.dtype[np.signedinteger]) -> Totals:
        """`values` is used up."""
        pairs = values.reshape(2, 2, -1)
        pairs /= has
        left, shares = pairs
        total = self._least(left, kind)
        refused = self._refused(shares, free, at)
        if self.balanced:
            total += self._balanced(shares, kind)
        if refused is not None:
            np.copyto(total, NOWHERE, where=refused)
        return total

    def _least(self, left: Floats, kind: np.dtype[np.signedinteger]) -> Totals:
        whole = np.empty(left.shape, dtype=kind)
        np.maximum(left, 0.0, out=whole, casting="unsafe")  # of what is not negative, the whole part is the floor
        total: Totals = whole[0]
        total += whole[1]
        total >>= 1
        if self.least != 1:
            total *= self.least
        return total

    def _balanced(self, shares: Floats, kind: np.dtype[np.signedinteger]) -> Totals:
        """`(1 - difference / 2) * 100`, rounded where that is: a factor of 2 changes no digit."""
        if not self._both:
            np.minimum(shares, 1.0, out=shares)
        apart = shares[0]
        apart -= shares[1]
        np.abs(apart, out=apart)
        if self._both:  # whoever has a share above 1 is refused; only no number may be too large
            np.minimum(apart, 1.0, out=apart)
        np.subtract(2.0, apart, out=apart)
        score = np.empty(len(apart), dtype=kind)
        np.multiply(apart, _HALF, out=score, casting="unsafe")
        if self.balanced != 1:
            score *= self.balanced
        return score

    def _refused(self, shares: Floats, free: Amounts, at: At) -> NDArray[np.bool_] | None:
        """Where it does not fit: a share above 1 is never rounded to 1."""
        if not self._fit:
            return None
        refused: NDArray[np.bool_] | None = None
        if self._both:
            refused = np.maximum(shares[0], shares[1]) > 1.0
        elif self._used[0] or self._used[1]:
            refused = shares[0 if self._used[0] else 1] > 1.0
        for row, amount in self._others:
            short = np.ones(shares.shape[1], dtype=np.bool_) if row is None else free[row, at] < amount
            refused = short if refused is None else refused | short
        return refused


def taken_over(
    ask: Ask, nodes: Snapshot, filters: Sequence[FilterPlugin], scores: Sequence[tuple[ScorePlugin, int]]
) -> tuple[Usual | None, tuple[FilterPlugin, ...], tuple[tuple[ScorePlugin, int], ...]]:
    """What can be computed here, and those who are left to be asked themselves."""
    fits = [each for each in filters if Formula.FIT in each.formulas]
    least = [(each, weight) for each, weight in scores if Formula.LEAST_ALLOCATED in each.formulas]
    balanced = [(each, weight) for each, weight in scores if Formula.BALANCED in each.formulas]
    wanted = dict(ask.shape.wanted)
    whole = bool(fits) and CPU in wanted and MEMORY in wanted
    if not (fits or least or balanced) or not nodes.room.exact or not (whole or nodes.room.complete):
        return None, tuple(filters), tuple(scores)
    usual = Usual(
        ask,
        nodes,
        fit=bool(fits),
        least=sum(weight for _, weight in least),
        balanced=sum(weight for _, weight in balanced),
    )
    return (
        usual,
        tuple(each for each in filters if each not in fits),
        tuple(each for each in scores if each not in least and each not in balanced),
    )
