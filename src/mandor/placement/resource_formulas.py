"""The resource plugins as formulas: fit, least allocated and balanced allocation, in Kubernetes' numbers.

`plugins/` has the same arithmetic plugin by plugin; here it runs on `CapacityColumns`, for one node or for many, in few
vector operations.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.cached_columns import At
from mandor.placement.framework.capacity_columns import VALUES, Floats, ScoreBuffers
from mandor.placement.framework.incremental import Formula, IncrementalFilter, IncrementalScore
from mandor.placement.framework.points import SCORE_MOST
from mandor.placement.framework.request import CPU, MEMORY, PlacementRequest
from mandor.placement.framework.snapshot import Snapshot

NOWHERE = -1
Totals = NDArray[Any]
"""Signed integers of 32 or 64 bits."""
_AT_ONCE = 8192
"""Nodes computed together, so that intermediate results stay in the processor's cache."""
_TILED_MOST = 64
_HALF = SCORE_MOST / 2
_MIDDLE = SCORE_MOST // 2


class ResourceFormulas:
    """The formulas for one shape; `least` and `balanced` are the weights of those scores, 0 if not enabled.

    `change`: the balanced score is the change of the balance, not the balance with the instance.
    """

    __slots__ = (
        "_balanced",
        "_both",
        "_change",
        "_cpu",
        "_fit",
        "_least",
        "_memory",
        "_more",
        "_others",
        "_spare",
        "_tile",
    )

    def __init__(
        self, request: PlacementRequest, nodes: Snapshot, *, fit: bool, least: int, balanced: int, change: bool
    ) -> None:
        shape, wanted = request.shape, dict(request.shape.wanted)
        cpu, memory = wanted.pop(CPU, 0), wanted.pop(MEMORY, 0)
        self._fit, self._least, self._balanced, self._change = fit, least, balanced, change
        self._both = fit and cpu > 0 and memory > 0
        self._spare = float(-SCORE_MOST * shape.counted[0]), float(-SCORE_MOST * shape.counted[1])
        self._cpu, self._memory = float(cpu), float(memory)
        self._more = np.array([self._spare[1], self._spare[0], self._cpu, self._memory])[:, np.newaxis]
        self._tile: Floats | None = None
        self._others = [(nodes.rows.get(name), amount) for name, amount in wanted.items()] if fit else []

    def one(self, nodes: Snapshot, slot: int) -> int:
        """Return the weighted sum for one node, or `NOWHERE`."""
        return self.after(0, nodes._capacity_columns.shown[:, slot].tolist(), nodes, slot)

    def after(self, others: int, column: list[float], nodes: Snapshot, slot: int) -> int:
        """Return the sum after `others` replicas have been placed on the node. `column`: the node before that."""
        spare_memory, spare_cpu, cpu, memory, has_memory, has_cpu, _, _ = column
        times = others + 1
        share_cpu, share_memory = (cpu + times * self._cpu) / has_cpu, (memory + times * self._memory) / has_memory
        if self._both:
            if share_cpu > 1.0 or share_memory > 1.0:
                return NOWHERE
        else:
            if self._fit and ((share_cpu > 1.0 and self._cpu) or (share_memory > 1.0 and self._memory)):
                return NOWHERE
            share_cpu, share_memory = min(share_cpu, 1.0), min(share_memory, 1.0)
        for row, amount in self._others:
            if row is None or nodes.free[row, slot] < times * amount:
                return NOWHERE
        left_cpu = (spare_cpu + times * self._spare[0]) / has_cpu
        left_memory = (spare_memory + times * self._spare[1]) / has_memory
        least = (int(left_cpu) if left_cpu > 0.0 else 0) + (int(left_memory) if left_memory > 0.0 else 0) >> 1
        even = int((2.0 - abs(share_cpu - share_memory)) * _HALF)
        if self._change:
            old_cpu = min((cpu + others * self._cpu) / has_cpu, 1.0)
            old_memory = min((memory + others * self._memory) / has_memory, 1.0)
            even = _MIDDLE + (_MIDDLE + even - int((2.0 - abs(old_cpu - old_memory)) * _HALF) >> 1)
        return self._least * least + self._balanced * even

    def all(self, nodes: Snapshot, kind: np.dtype[Any]) -> Totals:
        """Return the sums for every node."""
        count = nodes._capacity_columns.shown.shape[1]
        if count <= _AT_ONCE:
            return self._part(nodes, slice(0, count), kind)
        parts = [slice(first, min(first + _AT_ONCE, count)) for first in range(0, count, _AT_ONCE)]
        return np.concatenate([self._part(nodes, part, kind) for part in parts])

    def _part(self, nodes: Snapshot, part: slice, kind: np.dtype[Any]) -> Totals:
        room = nodes._capacity_columns.shown
        scratch = nodes._capacity_columns.scratch(part.stop - part.start)
        values = scratch.columns[VALUES]
        np.add(room[VALUES, part], self._more, values)
        np.divide(values, room[VALUES.stop :, part], values)
        return self._totals(scratch, nodes, part, kind)

    def some(self, nodes: Snapshot, at: NDArray[np.intp], kind: np.dtype[Any]) -> Totals:
        """Return the sums for these nodes."""
        count = len(at)
        scratch = nodes._capacity_columns.scratch(count)
        nodes._capacity_columns.take(at, scratch)
        if count == _TILED_MOST:
            if self._tile is None:
                self._tile = np.repeat(self._more, count)
            np.add(scratch.values, self._tile, scratch.values)
        else:
            values = scratch.columns[VALUES]
            np.add(values, self._more, values)
        np.divide(scratch.values, scratch.has, scratch.values)
        return self._totals(scratch, nodes, at, kind)

    def _totals(self, scratch: ScoreBuffers, nodes: Snapshot, at: At, kind: np.dtype[Any]) -> Totals:
        """Compute the sums from the free percentages and the used shares."""
        count, cpu = scratch.count, scratch.share_cpu
        np.maximum(scratch.left, scratch.zeros, out=scratch.left)
        refused = self._refused(scratch, nodes, at) if self._fit else None
        if self._balanced:
            if not self._both:
                np.minimum(scratch.shares, scratch.ones, out=scratch.shares)
            # (1 - difference / 2) * 100, rounded where that is: a factor of 2 changes no digit.
            np.subtract(cpu, scratch.share_memory, cpu)
            np.abs(cpu, cpu)
            if refused is not None:
                np.minimum(cpu, scratch.ones_once, out=cpu)  # larger shares are refused; numbers must stay small
            np.subtract(scratch.twos, cpu, cpu)
            np.multiply(cpu, scratch.fifties, cpu)
            scores = scratch.scores.astype(kind)  # truncation is the floor of non-negative numbers
            even = scores[2 * count :]
            if self._change:
                even += nodes._capacity_columns.offsets[at]
                even >>= scratch.int_ones
            if self._balanced != 1:
                even *= self._balanced
        else:
            scores = scratch.left.astype(kind)
        total: Totals = scores[:count]
        total += scores[count : 2 * count]
        total >>= scratch.int_ones
        if self._least != 1:
            total *= self._least
        if self._balanced:
            total += even
        if refused is not None:
            total[refused] = NOWHERE
        return total

    def _refused(self, scratch: ScoreBuffers, nodes: Snapshot, at: At) -> NDArray[np.bool_] | None:
        """Return where the request does not fit (a share above 1 is never rounded to 1); None: it fits everywhere."""
        refused: NDArray[np.bool_] | None = None
        worst = scratch.worst
        if self._both:
            np.maximum(scratch.share_cpu, scratch.share_memory, out=worst)
            if worst[worst.argmax()] > 1.0:
                refused = np.greater(worst, scratch.ones_once, scratch.refused)
        elif self._cpu or self._memory:
            share = scratch.share_cpu if self._cpu else scratch.share_memory
            refused = np.greater(share, scratch.ones_once, scratch.refused)
        for row, amount in self._others:
            short = np.ones(scratch.count, dtype=np.bool_) if row is None else nodes.free[row, at] < amount
            refused = short if refused is None else refused | short
        return refused


Filters = tuple[IncrementalFilter, ...]
Weighed = tuple[tuple[IncrementalScore, int], ...]


class FormulaChoice:
    """Selects the plugins whose results are computed by formulas."""

    __slots__ = ("_balanced", "_change", "_filters", "_fits", "_least", "_other_scores", "_others", "_scores")

    def __init__(self, filters: Filters, scores: Weighed) -> None:
        self._filters, self._scores = filters, scores
        self._others = tuple(each for each in filters if not each.fit_formula)
        self._fits = len(self._others) < len(filters)
        self._least = sum(weight for each, weight in scores if each.score_formula is Formula.LEAST_ALLOCATED)
        changes = sum(weight for each, weight in scores if each.score_formula is Formula.BALANCE_CHANGE)
        self._change = changes > 0
        # A profile has one plugin of a name, so one of the two weights is 0.
        self._balanced = changes or sum(weight for each, weight in scores if each.score_formula is Formula.BALANCED)
        formulas = {Formula.LEAST_ALLOCATED, Formula.BALANCED, Formula.BALANCE_CHANGE}
        self._other_scores = tuple(each for each in scores if each[0].score_formula not in formulas)

    def of(self, request: PlacementRequest, nodes: Snapshot) -> tuple[ResourceFormulas | None, Filters, Weighed]:
        """Return the formulas for a request, and the plugins that have to be called themselves."""
        fits, room = self._fits, nodes._capacity_columns
        computed = (fits or self._least or self._balanced) and room.exact
        if not computed or not (room.complete or (fits and _wants_both(request))):
            return None, self._filters, self._scores
        formulas = ResourceFormulas(
            request, nodes, fit=fits, least=self._least, balanced=self._balanced, change=self._change
        )
        return formulas, self._others, self._other_scores


def _wants_both(request: PlacementRequest) -> bool:
    return {name for name, _ in request.shape.wanted} >= {CPU, MEMORY}
