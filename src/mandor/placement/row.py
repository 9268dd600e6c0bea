"""The quick way to the best node: a row of totals for each class of instances, of which a placement changes one entry.

It is taken when every plugin that has something to say judges each node by itself, and leads to the same node as asking
all of them about all nodes.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SCORE_MOST, SKIP, FilterPlugin, Plugin, Reach, ScorePlugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Watch

NOWHERE = -1
Totals = NDArray[np.int16]
_FEW = 12
"""So many nodes are asked about one by one faster than together."""
_MOST = np.iinfo(np.int16).max


@dataclass(slots=True)
class Row:
    """What the plugins say of each node: once and for all (`still`), and with the room that is left now (`totals`)."""

    seen: tuple[object, ...]
    """As things stood when it was made: it holds while they do."""
    quick: bool
    """False: the long way has to be taken."""
    since: int = 0
    still: Totals | None = None
    totals: Totals | None = None
    filters: tuple[FilterPlugin, ...] = ()
    scores: tuple[tuple[ScorePlugin, int], ...] = ()
    """Those who look at the room."""


def totals_of(profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot, watch: Watch) -> Totals | None:
    """The weighted sum for each node, `NOWHERE` where it does not fit; None: this ask has to take the long way."""
    if not profile.local:
        return None
    try:
        return _totals(profile, state, ask, nodes, watch)
    except PluginFault:
        raise
    except Exception as error:
        raise PluginFault(watch.current, f"raised {type(error).__name__}: {error}") from error


def _totals(profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot, watch: Watch) -> Totals | None:
    kept = nodes.kept
    key = (profile, ask.shape, ask.who, ask.dropped, ask.avoid, ask.pin)
    seen = (kept.attributes, nodes.census.ties_version, nodes.anyone_dedicated())
    row = cast("Row | None", kept.rows.get(key))
    if row is None or row.seen != seen:
        row = _make(profile, state, ask, nodes, watch, seen)
        kept.keep_row(key, row)
    if not row.quick or row.totals is None:
        return None
    slots = kept.changes_since(row.since)
    if slots is None or len(slots) > len(nodes) // 16 + 32:
        row = _make(profile, state, ask, nodes, watch, seen)
        kept.keep_row(key, row)
    else:
        if len(slots) > _FEW:
            _refresh_many(row, ask, nodes, slots, watch)
        else:
            for slot in slots:
                _refresh(row, ask, nodes, slot, watch)
        row.since = kept.now
    return row.totals


def _refresh(row: Row, ask: Ask, nodes: Snapshot, slot: int, watch: Watch) -> None:
    assert row.still is not None
    assert row.totals is not None
    total = int(row.still[slot])
    if total == NOWHERE:
        return
    for plugin in row.filters:
        watch.begin(plugin.name)
        if not plugin.filter_slot(ask, nodes, slot):
            row.totals[slot] = NOWHERE
            return
    for scorer, weight in row.scores:
        watch.begin(scorer.name)
        total += weight * scorer.score_slot(ask, nodes, slot)
    row.totals[slot] = total


def _refresh_many(row: Row, ask: Ask, nodes: Snapshot, slots: list[int], watch: Watch) -> None:
    assert row.still is not None
    assert row.totals is not None
    at = np.array(slots)
    total = row.still[at].astype(np.int64)
    fits = total != NOWHERE
    for plugin in row.filters:
        watch.begin(plugin.name)
        fits &= plugin.filter_at(ask, nodes, at)
    for scorer, weight in row.scores:
        watch.begin(scorer.name)
        total += weight * scorer.score_at(ask, nodes, at)
    row.totals[at] = np.where(fits, total, NOWHERE)


def _make(
    profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot, watch: Watch, seen: tuple[object, ...]
) -> Row:
    everyone = nodes.health.where("everyone", lambda _: True)
    silent: set[Plugin] = set()
    for plugin in profile.pre_filters:
        watch.begin(plugin.name)
        if plugin.pre_filter(state, ask, nodes) is SKIP:
            silent.add(plugin)
    filters = [(each, each.reach(ask, nodes)) for each in profile.filters if each not in silent]
    silent.clear()
    for each in profile.pre_scores:
        watch.begin(each.name)
        if each.pre_score(state, ask, nodes, everyone) is SKIP:
            silent.add(each)
    scores = [(each, weight, each.reach(ask, nodes)) for each, weight in profile.scores if each not in silent]
    wide = any(reach is Reach.CLUSTER for _, reach in filters) or any(reach is Reach.CLUSTER for *_, reach in scores)
    relative = any(type(each).normalize is not ScorePlugin.normalize for each, *_ in scores)
    if wide or relative or SCORE_MOST * sum(weight for _, weight, _ in scores) > _MOST:
        return Row(seen, quick=False)
    fits, fits_now = np.ones(len(nodes), dtype=np.bool_), np.ones(len(nodes), dtype=np.bool_)
    for filterer, reach in filters:
        watch.begin(filterer.name)
        (fits if reach is Reach.ATTRIBUTES else fits_now)[:] &= filterer.filter(state, ask, nodes)
    total, total_now = np.zeros(len(nodes), dtype=np.int16), np.zeros(len(nodes), dtype=np.int16)
    for scorer, weight, reach in scores:
        watch.begin(scorer.name)
        said = (weight * scorer.score(state, ask, nodes, everyone)).astype(np.int16)
        (total if reach is Reach.ATTRIBUTES else total_now)[:] += said
    return Row(
        seen,
        quick=True,
        since=nodes.kept.now,
        still=np.where(fits, total, np.int16(NOWHERE)),
        totals=np.where(fits & fits_now, total + total_now, np.int16(NOWHERE)),
        filters=tuple(each for each, reach in filters if reach is Reach.ROOM),
        scores=tuple((each, weight) for each, weight, reach in scores if reach is Reach.ROOM),
    )
