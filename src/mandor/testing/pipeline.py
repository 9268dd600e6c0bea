"""Conformance suite for pipelines: subclass `PipelineSuite` and define how to check for its machines."""

import asyncio
from collections.abc import Callable

import pytest

from mandor.baremetal.pipeline import Pipeline, Run, VmOrder
from mandor.errors import Unavailable

PATIENCE_SECONDS = 120.0


class Memory(Run):
    """A run that is kept as the store would keep it."""

    def __init__(self, known: str = "") -> None:
        super().__init__(known, self._keep)
        self.kept: list[str] = []

    async def _keep(self, run: str) -> None:
        self.kept.append(run)
        self.id = run


class PipelineSuite:
    @pytest.fixture
    def make(self) -> Callable[[], Pipeline]:
        """Makes the pipeline; each stands for a server, and what they make is the same world."""
        raise NotImplementedError("give a fixture that makes the pipeline, and closes it in the end")

    @pytest.fixture
    def away(self) -> Pipeline:
        """One whose other side is not there."""
        raise NotImplementedError

    def there(self, name: str) -> bool:
        """Whether this virtual machine is."""
        raise NotImplementedError

    async def begun(self, run: Memory) -> None:
        """Wait until the creation of a machine has begun."""
        raise NotImplementedError

    def order(self, number: int = 1) -> VmOrder:
        return VmOrder(name=f"suite-{number}", cluster="suite", node="bm-1", address="127.0.0.1", cpu=1, memory_mib=128)

    async def test_the_same_order_is_the_same_machine_and_each_is_taken_away_alone(
        self, make: Callable[[], Pipeline]
    ) -> None:
        pipeline, one, two = make(), self.order(1), self.order(2)
        try:
            await pipeline.create(one, Memory())
            await pipeline.create(one, Memory())
            await pipeline.create(two, Memory())
            assert self.there(one.name)
            await pipeline.delete(one, Memory())
            await pipeline.delete(one, Memory())
            assert (self.there(one.name), self.there(two.name)) == (False, True)
        finally:
            await pipeline.delete(two, Memory())
        assert not self.there(two.name)

    async def test_what_was_begun_is_taken_away_also_by_another_server(self, make: Callable[[], Pipeline]) -> None:
        run = await self.broken_off(make())
        await make().delete(self.order(), Memory(run.id))
        assert not self.there(self.order().name)

    async def test_what_was_begun_is_finished_by_another_server(self, make: Callable[[], Pipeline]) -> None:
        run, other = await self.broken_off(make()), make()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await other.create(self.order(), Memory(run.id))
            assert self.there(self.order().name)
        finally:
            await other.delete(self.order(), Memory())

    async def test_one_that_does_not_answer_may_at_the_next_try(self, away: Pipeline) -> None:
        with pytest.raises(Unavailable):
            await away.create(self.order(), Memory())
        with pytest.raises(Unavailable):
            await away.delete(self.order(), Memory())

    async def broken_off(self, pipeline: Pipeline) -> Memory:
        """Return the record of a creation that was in progress when its server ended."""
        run = Memory()
        making = asyncio.ensure_future(pipeline.create(self.order(), run))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.begun(run)
        finally:
            making.cancel()
            await asyncio.wait({making})
        return run
