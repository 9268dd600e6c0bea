"""Disks of the engines that report their storage directory."""

import asyncio
from pathlib import Path

from mandor.agent.machine import DISKS_SECONDS, EngineDisks
from mandor.engines.fake import FakeEngine
from mandor.errors import EngineDown
from mandor.lib.clock import ManualClock


class WithStorage(FakeEngine):
    folder = ""

    async def storage(self) -> str:
        if self.is_down:
            raise EngineDown("down")
        return self.folder


async def test_a_storage_directory_can_appear_late_and_is_kept_while_the_engine_is_down(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = WithStorage(clock)
    disks = EngineDisks([engine], clock)
    asking = asyncio.ensure_future(disks.run())
    await clock.advance(1)
    assert list(disks.readings()) == []
    engine.folder = str(tmp_path)
    await clock.advance(DISKS_SECONDS)
    assert "disk" in {each.signal for each in disks.readings()}
    engine.down()
    await clock.advance(DISKS_SECONDS)
    assert list(disks.readings())
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)


async def test_engines_that_cannot_report_storage_are_not_queried() -> None:
    clock = ManualClock()
    disks = EngineDisks([FakeEngine(clock)], clock)
    async with asyncio.timeout(5):
        await disks.run()
    assert list(disks.readings()) == []
