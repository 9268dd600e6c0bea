"""A process whose start was cancelled before its supervisor was up never starts later."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from mandor.engines.base import Launch, Unit
from mandor.engines.process import ProcessEngine, spawn
from mandor.errors import EngineDown


def slow_supervisor(came: Path) -> list[str]:
    """A supervisor that takes its lock half a second late."""
    return ["/bin/sh", "-c", 'sleep 0.5; "$@"; touch "$0"', str(came), *spawn._PROGRAM]


@pytest.mark.req("S0-14", "S0-25")
async def test_a_unit_stopped_before_its_supervisor_starts_never_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop a unit with a second engine object, as the guard of a killed agent does."""
    came, begun = tmp_path / "came", tmp_path / "begun"
    unit, launch = Unit("u1", "main", 1), Launch(name="web-0", command=("touch", str(begun)), level="privileged")
    async with ProcessEngine(directory=tmp_path / "engine") as agent, ProcessEngine(tmp_path / "engine") as guard:
        await agent.probe()
        monkeypatch.setattr(spawn, "_PROGRAM", slow_supervisor(came))
        starting = asyncio.create_task(agent.start(unit, launch))
        async with asyncio.timeout(60):
            while not (tmp_path / "engine" / "units" / str(unit) / "launch.json").exists():
                await asyncio.sleep(0)
        await guard.stop(unit, grace_seconds=0)
        with suppress(EngineDown):
            await starting
        async with asyncio.timeout(60):
            while not came.exists():
                await asyncio.sleep(0.05)
        assert not begun.exists()


@pytest.mark.req("S0-14", "S0-27")
async def test_a_cancelled_start_with_a_slow_supervisor_never_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came = tmp_path / "came"
    slow = slow_supervisor(came)
    begun = tmp_path / "begun"
    launch = Launch(name="web-0", command=("sh", "-c", f"touch {begun}; exec sleep 0.1"), level="privileged")
    async with ProcessEngine(directory=tmp_path / "engine") as engine:
        await engine.probe()
        monkeypatch.setattr(spawn, "_PROGRAM", slow)
        starting = asyncio.create_task(engine.start(Unit("u1", "main", 1), launch))
        await asyncio.sleep(0.1)  # the supervisor starts, and has no lock yet
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        assert await engine.list() == [], "whoever broke it off sees nothing to stop"
        async with asyncio.timeout(60):
            while not came.exists():
                assert await engine.list() == []
                await asyncio.sleep(0.05)
        assert not begun.exists()
        assert await engine.list() == []
