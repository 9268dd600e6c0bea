"""The disks of engines: asked for again and again, of those that can tell."""

import asyncio
from pathlib import Path

from mandor.agent.machine import DISKS_SECONDS, EngineDisks
from mandor.engines.fake import FakeEngine
from mandor.errors import EngineDown
from mandor.lib.clock import ManualClock


class Telling(FakeEngine):
    folder = ""

    async def storage(self) -> str:
        if self.is_down:
            raise EngineDown("down")
        return self.folder


async def test_one_that_can_tell_may_do_so_late_and_keeps_what_it_had(tmp_path: Path) -> None:
    clock = ManualClock()
    engine = Telling(clock)
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


async def test_where_nobody_can_tell_nobody_is_asked() -> None:
    clock = ManualClock()
    disks = EngineDisks([FakeEngine(clock)], clock)
    async with asyncio.timeout(5):
        await disks.run()
    assert list(disks.readings()) == []
