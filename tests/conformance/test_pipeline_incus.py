"""A real incusd as a pipeline: it makes what was ordered, once, and takes away nothing but that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mandor.baremetal.incus import IncusPipeline
from mandor.baremetal.pipeline import Pipeline
from mandor.errors import Invalid
from mandor.testing.pipeline import Memory, PipelineSuite
from tests.components.incus import IMAGE, Incus


@pytest.mark.req("S4-30")
class TestIncus(PipelineSuite):
    @pytest.fixture
    async def make(self, incus: Incus) -> AsyncIterator[Callable[[], Pipeline]]:
        self.incus = incus
        made: list[Pipeline] = []

        def make() -> Pipeline:
            made.append(IncusPipeline(incus.url, IMAGE, type="container"))
            return made[-1]

        yield make
        for each in made:
            await each.close()

    @pytest.fixture
    def away(self, tmp_path: Path) -> Pipeline:
        return IncusPipeline(f"unix://{tmp_path}/nobody", IMAGE)

    def there(self, name: str) -> bool:
        if self.incus.cli("list", name, "--format", "csv", "--columns", "s") != "RUNNING":
            return False
        return self.incus.cli("config", "get", name, "limits.memory") == "128MiB"

    async def begun(self, run: Memory) -> None:
        while not run.id:
            await asyncio.sleep(0.001)


async def test_a_foreign_instance_is_left_alone(incus: Incus) -> None:
    pipeline, order = IncusPipeline(incus.url, IMAGE, type="container"), TestIncus().order()
    incus.cli("launch", IMAGE, order.name)
    try:
        with pytest.raises(Invalid, match="did not create"):
            await pipeline.create(order, Memory())
        await pipeline.delete(order, Memory())
        assert incus.cli("list", order.name, "--format", "csv", "--columns", "s") == "RUNNING"
    finally:
        incus.cli("delete", "--force", order.name)
        await pipeline.close()
