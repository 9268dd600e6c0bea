"""Slow listings with real daemons: units that start meanwhile are listed as running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Launch, Unit, UnitPhase
from mandor.engines.containers.engine import ContainerEngine
from mandor.engines.cri import CriEngine
from mandor.engines.docker import DockerEngine
from mandor.engines.incus import IncusEngine
from mandor.lib.ids import new_uid
from tests.components.image import NAME
from tests.components.incus import IMAGE

PATIENCE_SECONDS = 60.0


@pytest.fixture(params=["docker", "cri", "incus"])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ContainerEngine]:
    makers: dict[str, Callable[[], ContainerEngine]] = {
        "docker": lambda: DockerEngine(tmp_path / "e", socket=request.getfixturevalue("docker").socket),
        "cri": lambda: CriEngine(tmp_path / "e", socket=request.getfixturevalue("containerd").socket),
        "incus": lambda: IncusEngine(tmp_path / "e", url=request.getfixturevalue("incus").url),
    }
    async with makers[request.param]() as made:
        yield made
        for each in await made.list():
            await made.remove(each.unit)


def launch_for(engine: ContainerEngine, **parts: Any) -> Launch:
    image = IMAGE if engine.name == "incus" else NAME
    return Launch(name="web-0", image=image, command=("sh", "-c", "echo begun; exec sleep 3600"), **parts)


async def begun(engine: ContainerEngine, unit: Unit) -> None:
    """Check that the unit runs and was never restarted."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while [each.phase for each in await engine.list() if each.unit == unit] != [UnitPhase.RUNNING]:
            await asyncio.sleep(0.05)
        while not (said := [line.text async for line in engine.logs(unit)]):
            await asyncio.sleep(0.05)
    assert said == [b"begun"]


class Stages:
    """Holds a start before one of its steps, and every listing between the read and its result."""

    def __init__(self, engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.go_on, self.seen, self.judge = (asyncio.Event() for _ in range(4))
        listing = engine._list

        async def slow_list() -> Sequence[Any]:
            found = await listing()
            self.seen.set()
            await self.judge.wait()
            return found

        monkeypatch.setattr(engine, "_list", slow_list)
        self._monkeypatch = monkeypatch

    def before(self, owner: object, step: str, applies: Callable[..., bool] = lambda *_, **__: True) -> None:
        real: Callable[..., Awaitable[Any]] = getattr(owner, step)

        async def held(*arguments: Any, **named: Any) -> Any:
            if applies(*arguments, **named):
                self.there.set()
                await self.go_on.wait()
            return await real(*arguments, **named)

        self._monkeypatch.setattr(owner, step, held)

    async def cross(self, engine: ContainerEngine, unit: Unit, launch: Launch) -> None:
        """The listing begins before that step, and ends after the start."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            starting = asyncio.create_task(engine.start(unit, launch))
            await self.there.wait()
            looking = asyncio.create_task(engine.list())
            await self.seen.wait()
            self.go_on.set()
            await starting
            self.judge.set()
            await looking


@pytest.mark.req("S0-27")
async def test_a_container_that_started_since_it_was_listed_is_not_removed(
    engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, unit = Stages(engine, monkeypatch), Unit(new_uid(), "main", 1)
    if isinstance(engine, DockerEngine):
        stages.before(engine._api, "post", lambda path, *_, **__: path.endswith("/start"))
    elif isinstance(engine, CriEngine):
        from mandor.engines.cri import wire

        stages.before(engine._api, "call", lambda method, **_: method is wire.START)
    else:
        assert isinstance(engine, IncusEngine)
        stages.before(engine._instances, "complete")
    await stages.cross(engine, unit, launch_for(engine))
    await begun(engine, unit)


@pytest.mark.req("S0-27")
@pytest.mark.parametrize("engine", ["docker", "cri"], indirect=True)
async def test_a_sandbox_that_got_a_task_meanwhile_is_not_removed(
    engine: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages, unit = Stages(engine, monkeypatch), Unit(new_uid(), "main", 1)
    if isinstance(engine, DockerEngine):
        stages.before(engine._containers, "create")
    else:
        stages.before(engine, "_create")
    await stages.cross(engine, unit, launch_for(engine, sandbox=True))
    await begun(engine, unit)
