"""One run with faults: a timeline and random faults, after which the cluster must settle."""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.meta import Object
from mandor.sim.change_text import describe_change
from mandor.sim.convergence import differences, unsettled_reasons
from mandor.sim.fault import Faults
from mandor.sim.history import TimelineNote
from mandor.sim.history_recorder import HistoryRecorder
from mandor.sim.invariant_checker import InvariantChecker, InvariantViolated
from mandor.sim.run import LoadedScenario
from mandor.sim.scenario import Strategy, TimelineEntry
from mandor.sim.strategy import revised
from mandor.sim.timeline_runner import TimelineRunner
from mandor.sim.virtual import run_virtual

LOOK_SECONDS = 10.0
REST_SECONDS = 1800.0
"""Seconds that a cluster may take to settle after the last fault."""
NOTHING = TimelineEntry(at=Seconds(0))


class FaultRunResult(Struct, frozen=True, gc=False, kw_only=True):
    seed: int
    strategy: str
    digest: str
    """Hash of all changes with their order and time."""
    changes: int
    seconds: float
    """Seconds until the cluster had settled or an invariant was violated."""
    broken: tuple[str, ...] = ()
    """Violated invariants, or reasons why the cluster has not settled."""
    notes: tuple[TimelineNote, ...] = ()


def run_with_faults(loaded: LoadedScenario, strategy: str, seed: int, *, story: bool = False) -> FaultRunResult:
    """`story`: the result includes the timeline; a failed run always includes it."""
    return run_virtual(_FaultRun(loaded, strategy, seed).go(story=story))


class _FaultRun:
    def __init__(self, loaded: LoadedScenario, strategy: str, seed: int) -> None:
        self._loaded, self._name, self._seed = loaded, strategy, seed
        self._strategy: Strategy = loaded.scenario.plans[strategy]

    async def go(self, *, story: bool) -> FaultRunResult:
        async with self._loaded.cluster(self._strategy, self._seed, unreliable=True) as cluster:
            self._cluster = cluster
            self._history = HistoryRecorder(cluster.clock, cluster.clock.monotonic())
            loaded = self._loaded
            self._timeline = TimelineRunner(cluster, self._history, stored=loaded.scenario.stored, places=loaded.places)
            self._checker = InvariantChecker(cluster)
            cluster.start("history", self._history.follow(cluster.store))
            cluster.start("changes", self._record_changes())
            broken = await self._first_of(self._checker.follow(), self._live())
            await self._timeline.close()
            return FaultRunResult(
                seed=self._seed,
                strategy=self._name,
                digest=self._history.digest,
                changes=self._history.changes,
                seconds=round(self._history.now, 3),
                broken=tuple(broken),
                notes=tuple(self._history.notes) if story or broken else (),
            )

    async def _first_of(self, checker: Coroutine[Any, Any, None], life: Coroutine[Any, Any, list[str]]) -> list[str]:
        watching, living = asyncio.ensure_future(checker), asyncio.ensure_future(life)
        await asyncio.wait({watching, living}, return_when=asyncio.FIRST_COMPLETED)
        for task in (watching, living):
            task.cancel()
        await asyncio.wait({watching, living})
        if not watching.cancelled() and (error := watching.exception()) is not None:
            if not isinstance(error, InvariantViolated):
                raise error
            return [str(error)]
        return living.result()

    async def _record_changes(self) -> None:
        async for batch in self._cluster.store.watch(None, since=0):
            for each in batch:
                if not each.bookmark and (line := describe_change(each)):
                    self._history.note("-", line)

    # Time.

    async def _live(self) -> list[str]:
        """Apply the timeline and return why the cluster has not settled in time."""
        await self._cluster.add_nodes(self._loaded.kinds, off=self._loaded.off)
        for at, entry, objects in sorted(self._moments(), key=lambda each: each[0]):
            await asyncio.sleep(max(0.0, at - self._history.now))
            await self._timeline.submit(objects)
            await self._timeline.happen(entry)
            self._checker.look()
        self._history.note("calm", "all faults are repaired")
        ends = self._history.now + REST_SECONDS
        while reasons := unsettled_reasons(self._cluster, self._checker):
            if self._history.now > ends:
                return reasons
            await asyncio.sleep(LOOK_SECONDS)
        return await differences(self._cluster)

    def _moments(self) -> Iterator[tuple[float, TimelineEntry, Sequence[Object]]]:
        scenario = self._loaded.scenario
        for at, objects in self._loaded.arrivals(self._strategy, self._seed):
            yield at, NOTHING, objects
        for each, objects in zip(scenario.timeline, self._loaded.later, strict=True):
            yield float(each.at), each, revised(objects, self._strategy)
        chance = random.Random(f"faults {self._seed}")
        names = [each.meta.name for each in self._loaded.workloads]
        for each in Faults(chance, scenario.node_names, names).throw(0.0, float(scenario.end)):
            yield float(each.at), each, ()
