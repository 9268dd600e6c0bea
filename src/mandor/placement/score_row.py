"""Score rows: the rank of every node for a class of instances, cached; a placement changes one entry.

Plugins with node reach are called again only for nodes that changed, cluster-wide plugins for all nodes. The result is
the one of calling every plugin for every node.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from typing import Any, cast

import numpy as np

from mandor.placement.framework.cached_columns import EVERYWHERE, LAST_MOST, At, CachedColumns
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SCORE_MOST, ScorePlugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import (
    PluginFault,
    check_mask,
    check_numbers,
    check_scores,
    named_in,
    run_filters,
    run_scores,
)
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.tie_break import bits_of
from mandor.placement.framework.watch import Watch
from mandor.placement.plugin_reach import ClusterWide, ScoringPlan, plan
from mandor.placement.resource_formulas import NOWHERE, ResourceFormulas, Totals

_FEW = 6
"""Changed nodes up to which computing them one by one is faster than as a vector."""
_STILLS_MOST = 128
_NOTHING: Mapping[int, int] = {}


@dataclass(slots=True)
class ScoreRow:
    """The ranks of all nodes for one class.

    A rank is the sum of the scores, with a tie-break number in the lowest `bits`; negative: the node does not fit.
    """

    plan: ScoringPlan
    seen: tuple[object, ...]
    """State of the cluster for which the plan holds."""
    ranks: Totals
    bits: int
    lot_mask: int
    quiescent: Totals | None
    """Sums of the scores that depend on node attributes only; None: all are zero."""
    since: int
    """The number of the first change that the ranks do not include."""
    again: bool = False

    @property
    def nbytes(self) -> int:
        return self.ranks.nbytes


def best_slot(profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch) -> int:
    """Return the slot of the best node; `NOWHERE`: no node fits, or there is no cached way."""
    return _slot(profile, state, request, nodes, watch, drawn=True)


def first_slot(profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch) -> int:
    """Return the slot of the first of the best nodes, without tie-break."""
    return _slot(profile, state, request, nodes, watch, drawn=False)


def _slot(
    profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch, *, drawn: bool
) -> int:
    if not profile.local or not len(nodes):
        return NOWHERE
    try:
        row = _row(profile, state, request, nodes, watch)
        bits = row.bits if drawn else 0
        ranks = row.ranks if drawn else row.ranks >> row.bits
        if row.plan.wide is None:
            slot = int(ranks.argmax())
            return slot if ranks[slot] >= 0 else NOWHERE
        return _best_of_all(ranks, bits, row.plan.wide, state, request, nodes, watch)
    except PluginFault:
        raise
    except Exception as error:
        raise PluginFault(watch.current, f"raised {type(error).__name__}: {error}") from error


def fits_slot(
    profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, slot: int, watch: Watch
) -> bool:
    """Return whether a node fits; the profile is local."""
    try:
        row = _row(profile, state, request, nodes, watch)
        if row.plan.wide is None or row.ranks[slot] < 0:
            return bool(row.ranks[slot] >= 0)
        return bool(run_filters(row.plan.wide, state, request, nodes, watch, left=row.ranks >= 0).feasible[slot])
    except PluginFault:
        raise
    except Exception as error:
        raise PluginFault(watch.current, f"raised {type(error).__name__}: {error}") from error


def foreseeable(profile: Profile, request: PlacementRequest, nodes: Snapshot) -> bool:
    """Return whether `next_slots` has an answer: `best_slot` had one for the class, and only resources and attributes
    of single nodes matter."""
    row = cast("ScoreRow | None", nodes._cached.rows.get(_class_of(profile, request)))
    return row is not None and row.seen == _seen(nodes) and row.plan.wide is None and row.plan.alone


def next_slots(profile: Profile, request: PlacementRequest, nodes: Snapshot, count: int, watch: Watch) -> list[int]:
    """Return the slots that `best_slot` gives to the next `count` replicas, each counted before the next.

    The class takes nothing but resources. The list is shorter if no more replicas fit.
    """
    row = cast("ScoreRow", nodes._cached.rows[_class_of(profile, request)])
    if row.since != nodes._cached.now:
        _refresh(row, request, nodes, watch)
    assert row.plan.formulas is not None, "it is foreseeable"
    return _replica_slots(row, row.plan.formulas, nodes, count)


def _replica_slots(row: ScoreRow, formulas: ResourceFormulas, nodes: Snapshot, count: int) -> list[int]:
    """Simulate placements; each changes the rank of one node, so only the best `count` nodes matter."""
    ranks, bits, lot_mask = row.ranks, row.bits, row.lot_mask
    among = ranks.argpartition(-count)[-count:] if count < len(ranks) else np.arange(len(ranks))
    best = [(-rank, slot) for rank, slot in zip(ranks[among].tolist(), among.tolist(), strict=True) if rank >= 0]
    heapify(best)
    columns = dict(zip(among.tolist(), nodes._capacity_columns.shown[:, among].T.tolist(), strict=True))
    quiescent = (
        dict(zip(among.tolist(), row.quiescent[among].tolist(), strict=True)) if row.quiescent is not None else _NOTHING
    )
    came: dict[int, int] = {}
    found: list[int] = []
    while best and len(found) < count:
        rank, slot = best[0]
        found.append(slot)
        came[slot] = others = came.get(slot, 0) + 1
        total = formulas.after(others, columns[slot], nodes, slot)
        if total < 0:
            heappop(best)
        else:
            total += quiescent.get(slot, 0)
            heapreplace(best, (-(total << bits | -rank & lot_mask), slot))
    return found


def _best_of_all(
    ranks: Totals,
    bits: int,
    wide: ClusterWide,
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    watch: Watch,
) -> int:
    feasible = run_filters(wide, state, request, nodes, watch, left=ranks >= 0).feasible
    if not wide.scores:
        ranks = np.where(feasible, ranks, NOWHERE)
        slot = int(ranks.argmax())
        return slot if ranks[slot] >= 0 else NOWHERE
    among = feasible.nonzero()[0]
    if len(among) < 2:
        return int(among[0]) if len(among) else NOWHERE
    scores = run_scores(wide, state, request, nodes, feasible, among, watch)
    scores <<= bits
    scores += ranks.take(among)
    return int(among[scores.argmax()])


def _row(profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch) -> ScoreRow:
    """Return the row of a class, made or brought up to date."""
    kept = nodes._cached
    key, seen = _class_of(profile, request), _seen(nodes)
    row = cast("ScoreRow | None", kept.rows.get(key))
    if row is None:
        row = _make(profile, plan(profile, state, request, nodes, watch), seen, state, request, nodes, watch)
        kept.keep_row(key, row)
        return row
    row.again = True
    if row.seen != seen:
        planned = plan(profile, state, request, nodes, watch)
        if row.seen[0] != seen[0] or row.plan.local != planned.local:
            row = _make(profile, planned, seen, state, request, nodes, watch)
            row.again = True
            kept.keep_row(key, row)
            return row
        row.plan, row.seen = planned, seen
    if row.since != kept.now:
        _refresh(row, request, nodes, watch)
    return row


def _class_of(profile: Profile, request: PlacementRequest) -> Hashable:
    return profile, request.shape, request.identity, request.dropped, request.avoid, request.pin, request.lenient


def _seen(nodes: Snapshot) -> tuple[object, ...]:
    return nodes._cached.attributes, nodes.topology.terms_version, nodes.anyone_dedicated()


def _make(
    profile: Profile,
    planned: ScoringPlan,
    seen: tuple[object, ...],
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    watch: Watch,
) -> ScoreRow:
    bits = bits_of(len(nodes))
    kind = np.dtype(np.int32 if planned.most < 1 << 31 - bits else np.int64)
    quiescent = _attribute_sums(planned, kind, state, request, nodes, watch)
    since = nodes._cached.now
    ranks = _totals(planned, quiescent, request, nodes, EVERYWHERE, kind, watch)
    ranks <<= bits
    ranks |= profile.tie_breaks(request, nodes).view(np.int32)
    return ScoreRow(planned, seen, ranks, bits, (1 << bits) - 1, quiescent, since)


def _attribute_sums(
    planned: ScoringPlan,
    kind: np.dtype[Any],
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    watch: Watch,
) -> Totals | None:
    """Return the sums of the attribute plugins; None: no node is refused, and all scores are equal."""
    kept: CachedColumns = nodes._cached
    key = (planned.quiescent.key, kind)
    found = kept.stills.get(key)
    if found is not None and found[0] == kept.attributes:
        return found[1]
    fits = np.ones(len(nodes), dtype=np.bool_)
    for _, only in planned.quiescent.only:
        fits &= named_in(only, nodes)
    for plugin in planned.quiescent.filters:
        watch.begin(plugin.name, "Filter")
        passed = plugin.filter(state, request, nodes)
        check_mask(plugin, passed, len(nodes))
        fits &= passed
    total = np.zeros(len(nodes), dtype=kind)
    for scorer, weight in planned.quiescent.scores:
        watch.begin(scorer.name, "Score")
        scores = scorer.score(state, request, nodes, nodes.health.where("everyone", lambda _: True))
        total += _weighed(scorer, scores, weight, fits).astype(kind)
    np.copyto(total, _refused(kind), where=~fits)
    quiescent = total if total.any() else None
    if len(kept.stills) >= _STILLS_MOST:
        del kept.stills[next(iter(kept.stills))]
    kept.stills[key] = (kept.attributes, quiescent)
    return quiescent


def _refresh(row: ScoreRow, request: PlacementRequest, nodes: Snapshot, watch: Watch) -> None:
    """Recompute the nodes that changed since the last use.

    The last 64, 256 or 1024 changes are recomputed: vectors of a fixed length are faster, and extra nodes do no harm.
    """
    kept, planned = nodes._cached, row.plan
    now = kept.now
    changes = now - row.since
    if changes <= _FEW:
        for slot in kept.last(changes).tolist():
            _refresh_one(row, request, nodes, slot, watch)
    elif changes <= LAST_MOST and changes <= len(nodes) // (3 if planned.alone else 16) + 64:
        slots = kept.last(64 if changes <= 64 else 256 if changes <= 256 else LAST_MOST)
        row.ranks[slots] = _with_lots(row, row.ranks[slots], request, nodes, slots, watch)
    else:
        row.ranks = _with_lots(row, row.ranks.copy(), request, nodes, EVERYWHERE, watch)
    row.since = now


def _with_lots(
    row: ScoreRow, before: Totals, request: PlacementRequest, nodes: Snapshot, at: At, watch: Watch
) -> Totals:
    """Return new ranks with the tie-break numbers of the old ones."""
    scratch = nodes._capacity_columns.scratch(len(before))
    before &= scratch.lot_masks
    total = _totals(row.plan, row.quiescent, request, nodes, at, before.dtype, watch)
    total <<= scratch.lot_bits
    total |= before
    return total


def _refresh_one(row: ScoreRow, request: PlacementRequest, nodes: Snapshot, slot: int, watch: Watch) -> None:
    planned, total = row.plan, 0
    if row.quiescent is not None:
        total = int(row.quiescent[slot])
        if total < 0:
            return
    if planned.formulas is not None:
        found = planned.formulas.one(nodes, slot)
        total = NOWHERE if found < 0 else total + found
    if total >= 0 and (planned.filters or planned.scores):
        total = _with_others(planned, total, request, nodes, slot, watch)
    row.ranks[slot] = (total << row.bits) | (int(row.ranks[slot]) & row.lot_mask)


def _with_others(
    planned: ScoringPlan, total: int, request: PlacementRequest, nodes: Snapshot, slot: int, watch: Watch
) -> int:
    for plugin in planned.filters:
        watch.begin(plugin.name, "Filter")
        if not plugin.filter_slot(request, nodes, slot):
            return NOWHERE
    for scorer, weight in planned.scores:
        watch.begin(scorer.name, "Score")
        score = scorer.score_slot(request, nodes, slot)
        if not 0 <= score <= SCORE_MOST:
            raise PluginFault(scorer.name, f"gave the score {score}; scores are 0..100")
        total += weight * score
    return total


def _totals(
    planned: ScoringPlan,
    quiescent: Totals | None,
    request: PlacementRequest,
    nodes: Snapshot,
    at: At,
    kind: np.dtype[Any],
    watch: Watch,
) -> Totals:
    """Return the weighted sums for these nodes; `NOWHERE` where the request does not fit."""
    count = len(nodes) if isinstance(at, slice) else len(at)
    if planned.formulas is None:
        total: Totals = np.zeros(count, dtype=kind)
    elif isinstance(at, slice):
        total = planned.formulas.all(nodes, kind)
    else:
        total = planned.formulas.some(nodes, at, kind)
    if quiescent is not None or planned.filters or planned.scores:
        fits = total >= 0
        if quiescent is not None:
            known = quiescent if isinstance(at, slice) else quiescent.take(at)
            fits &= known >= 0
            total += known
        for plugin in planned.filters:
            watch.begin(plugin.name, "Filter")
            passed: Mask = plugin.filter_at(request, nodes, at)
            check_mask(plugin, passed, count)
            fits &= passed
        for scorer, weight in planned.scores:
            watch.begin(scorer.name, "Score")
            total += _weighed(scorer, scorer.score_at(request, nodes, at), weight, fits).astype(kind)
        np.copyto(total, NOWHERE, where=~fits)
    return total


def _weighed(scorer: ScorePlugin, scores: Scores, weight: int, fits: Mask) -> Scores:
    """Return a plugin's weighted scores of the nodes that fit; the scores of other nodes are not checked."""
    check_numbers(scorer, scores, len(fits))
    scores = np.where(fits, scores, 0)
    check_scores(scorer, scores, len(fits))
    return weight * scores


def _refused(kind: np.dtype[Any]) -> int:
    """Return a number so low that the sum stays negative."""
    return int(np.iinfo(kind).min) // 2
