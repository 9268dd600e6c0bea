"""The bubblewrap engine: each unit has a folder and a keeper; all it knows stands in those folders."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mandor.engine import (
    Capabilities,
    Engine,
    EngineDown,
    Invalid,
    Launch,
    LogLine,
    NotFound,
    Observed,
    Unit,
    UnitPhase,
    read_logs,
)
from mandor_bubblewrap import keeper
from mandor_bubblewrap.sandbox import command_line, stop_signal, write_files

EXTRAS = frozenset({"logs", "mounts", "links", "tmpfs"})
START_SECONDS = 30.0
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.02


class BubblewrapEngine(Engine):
    name: ClassVar[str] = "bubblewrap"

    def __init__(self, directory: Path, *, program: str = "bwrap") -> None:
        """`program`: bwrap's name or path (`--engine-option bubblewrap.program=…`)."""
        self._units = Path(directory).absolute() / "units"
        self._program = program
        self._locks: dict[Unit, asyncio.Lock] = {}

    async def probe(self) -> Capabilities:
        program = shutil.which(self._program)
        if program is None:
            raise NotFound(f"there is no {self._program} on this machine", hint="install bubblewrap")
        # What it can do here is tried: a kernel, or somebody's policy, may forbid it.
        words = [program, "--unshare-all", "--ro-bind", "/", "/", "true"]
        tried = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=False)
        if tried.returncode:
            raise EngineDown(f"bubblewrap makes no sandbox here: {tried.stderr.strip()}")
        told = await asyncio.to_thread(
            subprocess.run, [program, "--version"], capture_output=True, text=True, check=True
        )
        return Capabilities(version=told.stdout.split()[-1], extras=EXTRAS)

    async def list(self) -> Sequence[Observed]:
        found = []
        for unit in self._known():
            if (seen := self._look(unit)) is not None:
                found.append(seen)
            elif not self._lock(unit).locked():  # Prepared, and then whoever wanted it was interrupted.
                await asyncio.to_thread(shutil.rmtree, self._folder(unit), ignore_errors=True)
        return found

    async def start(self, unit: Unit, launch: Launch) -> None:
        folder = self._folder(unit)
        async with self._lock(unit):
            seen = self._look(unit)
            if seen is None and self._prepare(folder, launch):
                await self._keep(folder)
            if seen is None or seen.phase is UnitPhase.STARTING:
                await self._begun(folder)

    async def stop(self, unit: Unit, *, grace_seconds: float) -> None:
        folder = self._folder(unit)
        async with self._lock(unit):
            if not _held(folder):
                if self._look(unit) is None:  # Prepared: a keeper on its way finds nothing to begin.
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
                return
            await self._begun(folder)
            order = {"signal": _read(folder / "launch.json")["stop_signal"], "grace": grace_seconds}
            _write(folder / "stop.json", order)
            self._signal(folder, signal.SIGTERM)
        if not await self._over(folder, grace_seconds + KILL_SECONDS):
            self._signal(folder, signal.SIGKILL)  # The sandbox dies with its keeper.
            if not await self._over(folder, KILL_SECONDS):
                raise EngineDown(f"{unit} does not end, not even when it is killed")

    async def remove(self, unit: Unit) -> None:
        await self.stop(unit, grace_seconds=0.0)
        async with self._lock(unit):
            await asyncio.to_thread(shutil.rmtree, self._folder(unit), ignore_errors=True)
        self._locks.pop(unit, None)

    async def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        folder = self._folder(unit)
        if self._look(unit) is None:
            raise NotFound(f"there is no unit {unit} here")

        async def over() -> bool:
            return not _held(folder)

        async for line in read_logs(folder / "log", follow=follow, tail=tail, since=since, over=over):
            yield line

    # What stands in the folders.

    def _known(self) -> Sequence[Unit]:
        try:
            names = sorted(os.listdir(self._units))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise EngineDown(f"the bubblewrap engine cannot read {self._units}: {error}") from error
        parts = [(name.partition(".")[0], *name.partition(".")[2].rpartition(".")[::2]) for name in names]
        return [Unit(uid, task, int(attempt)) for uid, task, attempt in parts if attempt.isdecimal()]

    def _look(self, unit: Unit) -> Observed | None:
        """None: it was never begun."""
        folder = self._folder(unit)
        held = _held(folder)  # First: what is written before the keeper ends is there once it has.
        running, ended = _read(folder / "running.json"), _read(folder / "exit.json")
        if ended:
            return Observed(
                unit=unit,
                phase=UnitPhase.EXITED,
                exit_code=ended["code"],
                reason=ended["reason"],
                message=ended["message"],
                started_at=ended["started"],
                finished_at=ended["at"],
            )
        if running and held:
            return Observed(unit=unit, phase=UnitPhase.RUNNING, started_at=running["at"])
        if running:
            return Observed(
                unit=unit,
                phase=UnitPhase.EXITED,
                reason="Vanished",
                message="its keeper was killed, and the task with it",
                started_at=running["at"],
                finished_at=running["at"],
            )
        return Observed(unit=unit, phase=UnitPhase.STARTING) if held else None

    def _prepare(self, folder: Path, launch: Launch) -> bool:
        """All that the keeper needs; False: it can never start, and a record says why."""
        try:
            (folder / "work").mkdir(parents=True, exist_ok=True)
            write_files(launch, folder / "work")
            words = command_line(launch, folder / "work")
            record = {"bwrap": self._program, "words": words, "stop_signal": stop_signal(launch)}
            _write(folder / "launch.json", record)
        except Invalid as error:
            record = {
                "code": None,
                "reason": "StartFailed",
                "message": error.message,
                "started": 0.0,
                "at": time.time(),
            }
            _write(folder / "exit.json", record)
            return False
        except OSError as error:
            raise EngineDown(f"the bubblewrap engine cannot write to {folder}: {error}") from error
        return True

    async def _keep(self, folder: Path) -> None:
        """A keeper, unless there is one: of two that begin at the same time, one goes away again."""
        words = [sys.executable, "-I", "-S", keeper.__file__, str(folder)]
        environ = {"PATH": os.environ.get("PATH", os.defpath)}
        quiet = subprocess.DEVNULL
        await asyncio.to_thread(
            subprocess.run, words, env=environ, stdin=quiet, stdout=quiet, stderr=quiet, cwd="/", check=True
        )

    async def _begun(self, folder: Path) -> None:
        """Wait for the keeper's first word."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    if (folder / "running.json").exists() or (folder / "exit.json").exists():
                        return
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise EngineDown(f"no keeper begins in {folder}") from None

    async def _over(self, folder: Path, seconds: float) -> bool:
        """Whether its keeper has ended in time."""
        deadline = time.monotonic() + seconds
        while _held(folder):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(LOOK_SECONDS)
        return True

    def _signal(self, folder: Path, number: int) -> None:
        """To its keeper: whoever holds the lock has written its number."""
        if _held(folder):
            os.kill(_read(folder / "running.json")["pid"], number)

    def _folder(self, unit: Unit) -> Path:
        return self._units / str(unit)

    def _lock(self, unit: Unit) -> asyncio.Lock:
        return self._locks.setdefault(unit, asyncio.Lock())


def _held(folder: Path) -> bool:
    """Whether a keeper lives there."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _read(path: Path) -> dict[str, Any]:
    """Empty: it is not there."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found


def _write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all."""
    draft = path.with_name(f".{path.name}")
    draft.write_text(json.dumps(record), encoding="utf-8")
    os.replace(draft, path)
