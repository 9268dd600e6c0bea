"""Helpers of the engine suite: start units, read their state and wait."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TypeVar

import pytest

from mandor.engines.base import Engine, Execution, Launch, Observed, Unit, UnitPhase
from mandor.lib.ids import new_uid
from mandor.testing.engine_hooks import EngineHooks

REASONS = {"Completed", "Error", "OOMKilled", "Signalled", "StartFailed", "Vanished"}


Test = TypeVar("Test", bound=Callable[..., Awaitable[None]])


def where_announced(extra: str) -> Callable[[Test], Test]:
    """Skip the test for engines that do not announce this capability."""

    def guard(test: Test) -> Test:
        @wraps(test)
        async def run(self: "EngineWatch", engine: Engine) -> None:
            await self._needs(engine, extra)
            await test(self, engine)

        return run  # type: ignore[return-value]

    return guard


class EngineWatch(EngineHooks):
    _uids: list[str]
    """Uids of the units that the test started."""

    @pytest.fixture
    def volume(self, tmp_path: Path) -> Path:
        """A folder of the node with a file in it."""
        folder = (tmp_path / "volume").resolve()
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "seen").write_text("kept\n", encoding="utf-8")
        return folder

    async def _needs(self, engine: Engine, *extras: str) -> frozenset[str]:
        """Skip the test unless the engine announces these capabilities; return all that it announces."""
        announced = (await engine.probe()).extras
        missing = [extra for extra in extras if extra not in announced]
        if missing:
            pytest.skip(f"the engine does not announce {' and '.join(missing)}")
        return announced

    def _unit(self) -> Unit:
        unit = Unit(new_uid(), "main", 0)
        self._uids.append(unit.uid)
        return unit

    async def _start(self, engine: Engine, launch: Launch) -> Unit:
        unit = self._unit()
        await engine.start(unit, launch)
        return unit

    async def _units(self, engine: Engine) -> list[Unit]:
        return [observed.unit for observed in await engine.list()]

    async def _look(self, engine: Engine, unit: Unit) -> Observed:
        (found,) = [observed for observed in await engine.list() if observed.unit == unit]
        assert found.phase is not UnitPhase.EXITED or found.reason in REASONS
        return found

    async def _reach(self, engine: Engine, unit: Unit, phase: UnitPhase) -> Observed:
        async def reached() -> bool:
            return (await self._look(engine, unit)).phase is phase

        await self._until(reached, lambda: f"{unit} is not {phase}")
        return await self._look(engine, unit)

    async def _running(self, engine: Engine, unit: Unit) -> Observed:
        return await self._reach(engine, unit, UnitPhase.RUNNING)

    async def _ended(self, engine: Engine, unit: Unit) -> Observed:
        return await self._reach(engine, unit, UnitPhase.EXITED)

    async def _lines(self, engine: Engine, unit: Unit, *, tail: int | None = None) -> list[str]:
        """Return the lines of standard output; a shell may print to standard error."""
        return [line.text.decode() async for line in engine.logs(unit, tail=tail) if line.stream == "stdout"]

    async def _printed(self, engine: Engine, unit: Unit, count: int) -> None:
        async def printed() -> bool:
            return len(await self._lines(engine, unit)) >= count

        await self._until(printed, lambda: f"{unit} does not print")

    async def _output(self, engine: Engine, launch: Launch) -> list[str]:
        """Run a unit to its end and return its output."""
        unit = await self._start(engine, launch)
        ended = await self._ended(engine, unit)
        lines = [line.text.decode() async for line in engine.logs(unit)]
        assert ended.reason == "Completed", (ended, lines)
        return lines

    async def _run(
        self, engine: Engine, unit: Unit, command: Sequence[str], data: bytes = b""
    ) -> tuple[bytes, bytes, int]:
        execution = await engine.exec(unit, command)
        feeding = asyncio.create_task(_feed(execution, data))
        found = await self._collect(execution)
        await feeding
        return found

    async def _collect(self, execution: Execution) -> tuple[bytes, bytes, int]:
        parts: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        try:
            async with asyncio.timeout(self.patience_seconds):
                while (piece := await execution.read()) is not None:
                    parts[piece[0]] += piece[1]
                return bytes(parts["stdout"]), bytes(parts["stderr"]), await execution.wait()
        finally:
            await execution.close()

    async def _until(self, condition: Callable[[], Awaitable[bool]], complaint: Callable[[], str]) -> None:
        deadline = time.monotonic() + self.patience_seconds
        while not await condition():
            if time.monotonic() > deadline:
                pytest.fail(complaint())
            await asyncio.sleep(0.02)


async def _feed(execution: Execution, data: bytes) -> None:
    for start in range(0, len(data), 65536):
        await execution.write(data[start : start + 65536])
    await execution.write(b"")
