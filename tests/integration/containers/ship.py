"""A docker engine of a test's own, and a few ways to look at what it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from mandor.engines.base import Launch, Observed, Unit, UnitPhase
from mandor.engines.docker import DockerEngine
from mandor.lib.ids import new_uid
from tests.components.docker import RunningDocker
from tests.components.image import NAME

WAIT_SECONDS = 60.0
SLEEPS = "trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done"


class Ship:
    """An engine over a dockerd, and what a test does with both."""

    def __init__(self, docker: RunningDocker, directory: Path, **settings: Any) -> None:
        self.docker, self.directory = docker, directory
        self.engine = DockerEngine(directory, socket=docker.socket, **settings)

    def unit(self, task: str = "main", uid: str | None = None) -> Unit:
        return Unit(uid or new_uid(), task, 1)

    def launch(self, script: str = SLEEPS, **parts: Any) -> Launch:
        return Launch(**{"name": "web-0", "image": NAME, "command": ("sh", "-c", script)} | parts)

    async def start(self, script: str = SLEEPS, unit: Unit | None = None, **parts: Any) -> Unit:
        unit = unit or self.unit()
        await self.engine.start(unit, self.launch(script, **parts))
        return unit

    async def look(self, unit: Unit) -> Observed:
        (found,) = [each for each in await self.engine.list() if each.unit == unit]
        return found

    async def ended(self, unit: Unit) -> Observed:
        async def over() -> bool:
            return (await self.look(unit)).phase is UnitPhase.EXITED

        await until(over, f"{unit} does not end")
        return await self.look(unit)

    async def output(self, unit: Unit) -> list[str]:
        await self.ended(unit)
        return [line.text.decode() async for line in self.engine.logs(unit)]

    def containers(self) -> list[str]:
        """The names of everything with mandor's mark, whatever its state."""
        words = ("ps", "--all", "--filter", "label=io.mandor.owner", "--format", "{{.Names}} {{.State}}")
        return sorted(self.docker.cli(*words).splitlines())

    async def clear(self) -> None:
        for each in await self.engine.list():
            await self.engine.remove(each.unit)
        assert await self.engine.list() == []


NewShip = Callable[..., Ship]
"""`new_ship(docker, directory, **settings)`"""


async def until(condition: Callable[[], Awaitable[bool]], complaint: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not await condition():
        assert time.monotonic() < deadline, complaint
        await asyncio.sleep(0.05)
