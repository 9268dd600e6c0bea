"""Containers that were created and not started: they are removed, or listed while they may still start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest

from mandor.engines.base import Launch, Observed, Unit, UnitPhase
from mandor.engines.containers.engine import ContainerEngine
from mandor.engines.containers.refused import Refused
from mandor.engines.containers.tracked import Tracked
from mandor.model.node import Capabilities

UNIT = Unit("u-1", "main", 1)


class Containers(ContainerEngine):
    """An engine with one container, of which only the phase exists."""

    name: ClassVar[str] = "containers"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.phase: UnitPhase | None = None
        self.stuck = False
        self.begins_meanwhile = False
        self.made = asyncio.Event()
        self.order = asyncio.Event()
        """A late start request arrives."""

    async def probe(self) -> Capabilities:
        return Capabilities()

    async def _list(self) -> Sequence[tuple[Unit, Awaitable[Observed | None]]]:
        return [(UNIT, self._look())] if self.phase is not None else []

    async def _look(self) -> Observed | None:
        if self.phase is UnitPhase.STARTING:
            if self.begins_meanwhile:
                self.phase = UnitPhase.RUNNING
            return await self._abandon(UNIT)
        return None if self.phase is None else Observed(unit=UNIT, phase=self.phase)

    async def _find(self, unit: Unit, *, foreign: bool = False) -> Any | None:
        return self.phase

    def _phase(self, unit: Unit, found: Any) -> UnitPhase:
        return UnitPhase(found)

    async def _begin(self, unit: Unit, launch: Launch, tracked: Tracked, found: Any | None) -> None:
        self.phase = UnitPhase.STARTING
        self.made.set()
        await self.order.wait()
        self.phase = UnitPhase.RUNNING

    async def _end(self, unit: Unit, found: Any, tracked: Tracked, grace_seconds: float) -> None:
        self.phase = UnitPhase.EXITED

    async def _discard(self, unit: Unit) -> None:
        if self.stuck:
            raise Refused("it is in starting state")
        self.phase = None


@pytest.fixture
def engine(tmp_path: Path) -> Containers:
    return Containers(tmp_path)


async def break_off(engine: Containers) -> None:
    starting = asyncio.create_task(engine.start(UNIT, Launch(name="web-0")))
    await engine.made.wait()
    starting.cancel()
    with suppress(asyncio.CancelledError):
        await starting


async def test_a_cancelled_start_removes_what_it_created(engine: Containers) -> None:
    await break_off(engine)
    assert engine.phase is None
    assert await engine.list() == []


@pytest.mark.req("S0-14")
async def test_a_container_that_cannot_be_removed_is_listed_until_it_can(engine: Containers) -> None:
    engine.stuck = True
    await break_off(engine)
    assert [each.phase for each in await engine.list()] == [UnitPhase.STARTING]
    engine.stuck = False
    assert await engine.list() == []


async def test_a_unit_that_starts_between_two_listings_is_listed(engine: Containers) -> None:
    engine.phase, engine.begins_meanwhile = UnitPhase.STARTING, True
    assert [each.phase for each in await engine.list()] == [UnitPhase.STARTING]
    assert [each.phase for each in await engine.list()] == [UnitPhase.RUNNING]


@pytest.mark.req("S0-25")
async def test_stopping_a_container_that_was_not_started_removes_it(engine: Containers) -> None:
    engine.phase = UnitPhase.STARTING
    await engine.stop(UNIT, grace_seconds=0)
    assert engine.phase is None
