"""A workload that is deleted and created again has the same names: the new release runs."""

from __future__ import annotations

from pathlib import Path

from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.store.base import Delete
from tests.unit.agent.world import World, open_world


async def forget(world: World) -> None:
    await world.stop_order()
    await world.until_phase(Phase.STOPPED)
    await world.delete()
    await world.pass_time(5)
    for kind, name in (("release", "web.1"), ("workload", "web")):
        found = await world.store.get(Key(kind, "default", name))
        assert found is not None
        await world.store.commit(Delete(found.key, found.meta.version))


async def said(world: World) -> bytes:
    (line,) = [each.text async for each in world.engine.logs(world.starts[-1])]
    return line


async def test_a_recreated_workload_runs_its_new_release(tmp_path: Path) -> None:
    async with open_world(tmp_path) as world:
        for text in ("first", "second"):
            await world.apply(options={"fake": {"stdout": [text]}})
            await world.order()
            await world.until_phase(Phase.RUNNING)
            assert await said(world) == text.encode()
            if text == "first":
                await forget(world)
