"""A real incusd as a pipeline: it makes what was ordered, once, and takes away nothing but that."""

from __future__ import annotations

import pytest

from mandor.baremetal.incus import IncusPipeline
from mandor.baremetal.pipeline import Run, VmOrder
from mandor.errors import Invalid
from tests.components.incus import IMAGE, Incus

ORDER = VmOrder(name="spare-1", cluster="lab", node="bm-1", address="127.0.0.1", cpu=1, memory_mib=128)


async def forget(run: str) -> None:
    return None


@pytest.mark.req("S4-30")
async def test_an_instance_is_made_once_with_its_limits_and_taken_away(incus: Incus) -> None:
    pipeline = IncusPipeline(incus.url, IMAGE, type="container")
    run = Run("", forget)
    try:
        await pipeline.create(ORDER, run)
        await pipeline.create(ORDER, run)
        assert incus.cli("list", "spare-1", "--format", "csv", "--columns", "s") == "RUNNING"
        assert incus.cli("config", "get", "spare-1", "limits.memory") == "128MiB"
    finally:
        await pipeline.delete(ORDER, run)
        await pipeline.delete(ORDER, run)
        await pipeline.close()
    assert incus.cli("list", "spare-1", "--format", "csv") == ""


async def test_an_instance_that_is_somebody_elses_is_left_alone(incus: Incus) -> None:
    pipeline = IncusPipeline(incus.url, IMAGE, type="container")
    incus.cli("launch", IMAGE, "spare-1")
    try:
        with pytest.raises(Invalid, match="not ours"):
            await pipeline.create(ORDER, Run("", forget))
        await pipeline.delete(ORDER, Run("", forget))
        assert incus.cli("list", "spare-1", "--format", "csv", "--columns", "s") == "RUNNING"
    finally:
        incus.cli("delete", "--force", "spare-1")
        await pipeline.close()
