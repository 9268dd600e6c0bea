"""The folder of one unit: what is written there, by whom, and what it means."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.engines.shim.light import replace

T = TypeVar("T")

_FLOCK = "hhqqi4x"
"""struct flock: type, whence, start, length, pid."""


class Running(Struct, frozen=True):
    """Written by the supervisor just before the program begins."""

    pid: int
    started_at: float
    boot: str


class Exit(Struct, frozen=True, kw_only=True):
    """Written when all of the unit is over: by the supervisor, or for one that vanished by the engine."""

    code: int | None
    reason: str
    message: str = ""
    started_at: float = 0.0
    finished_at: float = 0.0
    cpu_seconds: float = 0.0

    def observed(self, unit: Unit) -> Observed:
        return Observed(
            unit=unit,
            phase=UnitPhase.EXITED,
            exit_code=self.code,
            reason=self.reason,
            message=self.message,
            started_at=self.started_at,
            finished_at=self.finished_at,
        )


class StopOrder(Struct, frozen=True):
    signal: int
    grace: float


class _Note(Struct, frozen=True, omit_defaults=True):
    """What is kept of a launch on the disk: nothing secret."""

    stop_signal: int = int(signal.SIGTERM)
    record: str = ""
    """The file in memory with the launch itself; empty: the launch is in the same file as this."""


class UnitFolder:
    def __init__(self, path: Path, memory: Path | None = None) -> None:
        """`memory`: the engine's folder in memory; None: it has none."""
        self.path = path
        self._memory = memory / path.name if memory is not None else None
        self.work = path / "work"
        self.tmp = path / "tmp"
        """What the task has as /tmp, if it has a view of its own."""
        self.root = path / "root"
        """Where the root of the task's view is mounted, in the view's own mount namespace."""
        self.log = path / "log"
        self.supervisor_log = path / "supervisor.log"

    def make(self, *, open_to_pass: bool) -> None:
        """`open_to_pass`: the task is another user's and finds its working folder through this one."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        if open_to_pass:
            self.path.chmod(0o711)

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def write_launch(self, record: dict[str, Any]) -> None:
        """It may hold secrets: it goes to memory, where there is such a folder, and the disk has a note of it."""
        if self._memory is None:
            self._write("launch.json", record)
            return
        self._memory.mkdir(mode=0o700, exist_ok=True)
        place = self._memory / "launch.json"
        replace(str(place), msgspec.json.encode(record))
        self._write("launch.json", _Note(stop_signal=record["stop_signal"], record=str(place)))

    def _forget_launch(self) -> None:
        """Delete the note first: a supervisor that is on its way finds nothing to begin."""
        note = self._read("launch.json", _Note, _Note())
        (self.path / "launch.json").unlink(missing_ok=True)
        if note is not None and note.record:
            shutil.rmtree(Path(note.record).parent, ignore_errors=True)

    def write_stop(self, order: StopOrder) -> None:
        self._write("stop.json", order)

    def write_exit(self, record: Exit) -> None:
        """And let go of the launch: it may hold secrets, and nobody needs it any more."""
        self._write("exit.json", record, durable=True)
        self._forget_launch()

    def read_running(self) -> Running | None:
        return self._read("running.json", Running, Running(pid=0, started_at=0.0, boot=""))

    def read_exit(self) -> Exit | None:
        unreadable = Exit(code=None, reason="Vanished", message="the record of how it ended cannot be read")
        return self._read("exit.json", Exit, unreadable)

    def read_stop_signal(self) -> int | None:
        """What it is to be asked to stop with; None: there is no launch."""
        launch = self._read("launch.json", _Note, _Note())
        return None if launch is None else launch.stop_signal

    def read_supervisor_log(self) -> str:
        """What a supervisor said last, if anything: there it only complains."""
        try:
            return (
                self.supervisor_log.read_text(encoding="utf-8", errors="replace")[-2000:].strip() or "it said nothing"
            )
        except OSError:
            return "it said nothing"

    def supervisor(self) -> int | None:
        """The number of the process that holds the lock, asked without taking it; None: there is none."""
        try:
            file = os.open(self.path / "lock", os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, question))
        finally:
            os.close(file)
        return None if kind == fcntl.F_UNLCK else pid

    def take_away(self, trash: Path) -> bool:
        """Move it out of sight in one step, unless a supervisor came to life in it."""
        try:
            file = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            return True
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A supervisor may be on its way still, with this folder as its own: it must find nothing to begin.
            self._forget_launch()
            os.rename(self.path, trash)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
        return True

    def call_off(self) -> None:
        """A supervisor that is on its way finds nothing to begin; one that has come is seen, and can be stopped."""
        with suppress(OSError):  # BlockingIOError: it has come.
            file = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._forget_launch()
            finally:
                os.close(file)

    def _write(self, name: str, record: Any, *, durable: bool = False) -> None:
        replace(str(self.path / name), msgspec.json.encode(record), durable=durable)

    def _read(self, name: str, kind: type[T], unreadable: T) -> T | None:
        """A record that someone spoiled costs this unit, not the others."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.DecodeError:
            return unreadable
