"""One run with faults: a cluster goes through what its owners and a seed do to it, and has to come to rest after."""

import asyncio
import random
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.meta import Object
from mandor.sim import diary
from mandor.sim.chronicle import Chronicle
from mandor.sim.fault import Faults
from mandor.sim.happen import Director
from mandor.sim.history import Note
from mandor.sim.rest import differences, restless
from mandor.sim.run import Piece
from mandor.sim.scenario import Happening, Strategy
from mandor.sim.strategy import revised
from mandor.sim.virtual import run_virtual
from mandor.sim.witness import Broken, Witness

LOOK_SECONDS = 10.0
REST_SECONDS = 1800.0
"""So long after the last fault a cluster may take until it is at rest."""
NOTHING = Happening(at=Seconds(0))


class OrdealResult(Struct, frozen=True, gc=False, kw_only=True):
    seed: int
    strategy: str
    digest: str
    """Of everything that was ever written."""
    changes: int
    seconds: float
    """How long it took until the cluster was at rest, or something was broken."""
    broken: tuple[str, ...] = ()
    """What did not hold."""
    notes: tuple[Note, ...] = ()


def run_ordeal(piece: Piece, strategy: str, seed: int, *, story: bool = False) -> OrdealResult:
    """`story`: with everything that happened, which a broken one always tells."""
    return run_virtual(_Ordeal(piece, strategy, seed).go(story=story))


class _Ordeal:
    def __init__(self, piece: Piece, strategy: str, seed: int) -> None:
        self._piece, self._name, self._seed = piece, strategy, seed
        self._strategy: Strategy = piece.scenario.plans[strategy]

    async def go(self, *, story: bool) -> OrdealResult:
        async with self._piece.cluster(self._strategy, self._seed, shaky=True) as cluster:
            self._cluster = cluster
            self._chronicle = Chronicle(cluster.clock, cluster.clock.monotonic())
            self._director = Director(cluster, self._chronicle)
            self._witness = Witness(cluster)
            cluster.start("chronicle", self._chronicle.follow(cluster.store))
            cluster.start("diary", self._keep_diary())
            broken = await self._first_of(self._witness.follow(), self._live())
            await self._director.close()
            return OrdealResult(
                seed=self._seed,
                strategy=self._name,
                digest=self._chronicle.digest,
                changes=self._chronicle.changes,
                seconds=round(self._chronicle.now, 3),
                broken=tuple(broken),
                notes=tuple(self._chronicle.notes) if story or broken else (),
            )

    async def _first_of(self, witness: Coroutine[Any, Any, None], life: Coroutine[Any, Any, list[str]]) -> list[str]:
        watching, living = asyncio.ensure_future(witness), asyncio.ensure_future(life)
        await asyncio.wait({watching, living}, return_when=asyncio.FIRST_COMPLETED)
        for task in (watching, living):
            task.cancel()
        await asyncio.wait({watching, living})
        if not watching.cancelled() and (error := watching.exception()) is not None:
            if not isinstance(error, Broken):
                raise error
            return [str(error)]
        return living.result()

    async def _keep_diary(self) -> None:
        async for batch in self._cluster.store.watch(None, since=0):
            for each in batch:
                if not each.bookmark and (line := diary.tell(each)):
                    self._chronicle.note("-", line)

    # Time.

    async def _live(self) -> list[str]:
        """What still is not as it should be when there was time enough for everything."""
        await self._cluster.add_nodes(self._piece.kinds, off=self._piece.off)
        for at, happening, objects in sorted(self._moments(), key=lambda each: each[0]):
            await asyncio.sleep(max(0.0, at - self._chronicle.now))
            await self._director.submit(objects)
            await self._director.happen(happening)
            self._witness.look()
        self._chronicle.note("calm", "everything is whole again")
        ends = self._chronicle.now + REST_SECONDS
        while reasons := restless(self._cluster, self._witness):
            if self._chronicle.now > ends:
                return reasons
            await asyncio.sleep(LOOK_SECONDS)
        return await differences(self._cluster)

    def _moments(self) -> Iterator[tuple[float, Happening, Sequence[Object]]]:
        scenario = self._piece.scenario
        for at, objects in self._piece.arrivals(self._strategy, self._seed):
            yield at, NOTHING, objects
        for each, objects in zip(scenario.timeline, self._piece.later, strict=True):
            yield float(each.at), each, revised(objects, self._strategy)
        chance = random.Random(f"faults {self._seed}")
        names = [each.meta.name for each in self._piece.workloads]
        for each in Faults(chance, scenario.node_names, names).throw(0.0, float(scenario.end)):
            yield float(each.at), each, ()
