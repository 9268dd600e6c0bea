"""Decides about one instance: by what is known, in one go, or, where room has to be made for it, in steps."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import TypeVar

from msgspec import structs

from mandor.lib.steps import TURN, Steps, at_once
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import FEW_NODES, Decision, begin, broken_off
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.watch import Overrun
from mandor.scheduler.metrics import SchedulerMetrics
from mandor.scheduler.nominations import Nominations
from mandor.scheduler.queue import Entry, SchedulingQueue
from mandor.scheduler.tracing import Tracing
from mandor.scheduler.view import View
from mandor.scheduler.watchdog import Watchdog

BEGINNINGS_MOST = 4
"""So often the table may have changed under it; then it is decided in one go."""
T = TypeVar("T")
_NOBODY = Key(Instance.kind, "", "")


@dataclass(slots=True)
class Begun:
    """A decision that is not over."""

    entry: Entry
    request: PlacementRequest
    profile: Profile
    nominated: str
    steps: Steps[Decision]
    version: int
    """Of the table when it was begun."""
    seconds: float
    """What it has taken so far."""
    sampled: bool


class Deciding:
    def __init__(
        self,
        view: View,
        queue: SchedulingQueue,
        watchdog: Watchdog,
        measures: SchedulerMetrics,
        nominations: Nominations,
        tracing: Tracing | None,
    ) -> None:
        self._view, self._queue = view, queue
        self._watchdog, self._measures = watchdog, measures
        self._nominations, self._tracing = nominations, tracing
        self._refusals: dict[PlacementRequest, Decision] = {}
        """Cached refusals by class, without the instance's key; valid for one version of the table."""
        self._refused_at = -1
        """The table's version that `_refusals` is valid for."""

    def forget(self) -> None:
        """What is known was said by plugins that are not asked any more."""
        self._refusals.clear()

    def following(self, entry: Entry) -> AbstractContextManager[None]:
        """What is done in it is part of this one's story."""
        return self._tracing.following(entry) if self._tracing is not None else nullcontext()

    def begin(self, entry: Entry, profile: Profile) -> Decision | Begun:
        request, table = entry.request, self._view.table
        nominated = self._view.nominated(request.key) if table.lodgings.lowest_held() is not None else ""
        # An instance that did not fit means that its replicas do not fit either, while the table is unchanged.
        if self._refused_at != table.version:
            self._refusals.clear()
            self._refused_at = table.version
        # A traced decision is made in full, so that its trace shows every plugin.
        if self._refusals and not nominated and self._watchdog.trail is None:
            known = self._refusals.get(structs.replace(request, key=_NOBODY))
            if known is not None:
                return structs.replace(known, key=request.key)
        began = perf_counter()
        made = self._watched(entry, lambda: self._placed(entry, profile, nominated))
        seconds, sampled = perf_counter() - began, self._watchdog.sampled and self._watchdog.trail is None
        if not isinstance(made, Decision):
            return Begun(entry, request, profile, nominated, made, table.version, seconds, sampled)
        if sampled:
            self._measures.decisions.add(seconds)
        self._remember(request, profile, nominated, made)
        return made

    async def finish(self, begun: Begun) -> Decision | None:
        """Others run between its steps, but no other cycle. When the table has changed it begins anew: what comes out
        is what one step would have given. None: it is gone, or it is not what it was, and is decided again."""
        entry, request, beginnings = begun.entry, begun.request, 1
        self._queue.decide_on(entry)
        while True:
            await asyncio.sleep(0)
            if self._queue.entry(request.key) is not entry:
                return None
            if entry.request != request:
                self._queue.drop_held(entry)
                self._queue.retry(entry)
                return None
            with self.following(entry):
                made = None
                if self._view.table.version != begun.version:
                    beginnings += 1
                    made = self._begin_anew(begun)
                if made is None:
                    made = self._go_on(begun, whole=beginnings >= BEGINNINGS_MOST)
            if made is not None:
                self._queue.drop_held(entry)
                return made

    def _begin_anew(self, begun: Begun) -> Decision | None:
        made = self.begin(begun.entry, begun.profile)
        if isinstance(made, Decision):
            return made
        begun.nominated, begun.steps, begun.version = made.nominated, made.steps, made.version
        begun.seconds += made.seconds
        return None

    def _go_on(self, begun: Begun, *, whole: bool) -> Decision | None:
        """None: it is not over."""
        began = perf_counter()
        made = self._watched(begun.entry, lambda: at_once(begun.steps) if whole else _some(begun.steps))
        begun.seconds += perf_counter() - began
        if made is not None:
            if begun.sampled:
                self._measures.decisions.add(begun.seconds)
            self._remember(begun.request, begun.profile, begun.nominated, made)
        return made

    def _placed(self, entry: Entry, profile: Profile, nominated: str) -> Decision | Steps[Decision]:
        table, nodes = self._view.table, len(self._view.table)
        tracing = self._tracing if self._watchdog.trail is not None else None
        return begin(
            profile,
            entry.request,
            table.snapshot(),
            nominated=nominated,
            consulted=entry.consulted,
            watch=self._watchdog,
            moment=lambda: self._nominations.moment(entry),
            step_by_step=tracing.affords(entry, nodes) if tracing is not None else nodes <= FEW_NODES,
        )

    def _watched(self, entry: Entry, work: Callable[[], T]) -> T | Decision:
        watchdog = self._watchdog
        watchdog.enter()
        try:
            try:
                return work()
            finally:
                watchdog.leave()
        except Overrun:  # it arrived on the way out
            return broken_off(entry.request.key, watchdog.last)

    def _remember(self, request: PlacementRequest, profile: Profile, nominated: str, decision: Decision) -> None:
        # Each has its own volumes, perhaps, though all else is alike.
        alike = profile.by_class and not request.shape.volumes and not nominated
        if alike and not (decision.node or decision.fault or decision.nominated):
            self._refusals[structs.replace(request, key=_NOBODY)] = decision


def _some(steps: Steps[Decision]) -> Decision | None:
    """None: it is not over."""
    looks = 0
    while looks < TURN:
        try:
            looks += next(steps)
        except StopIteration as end:
            made: Decision = end.value
            return made
    return None
