"""The folder of one unit: the files by which the engine and the supervisor communicate."""

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
"""Format of `struct flock`: type, whence, start, length, pid."""


class Running(Struct, frozen=True):
    """Record that the supervisor writes just before the program starts."""

    pid: int
    started_at: float
    boot: str
    init: int = 0
    """Process id of the first process of the task's namespaces; 0: there are none."""
    address: str = ""
    """Address of the instance in the network of tasks; empty: it uses the network of the node."""


class Exit(Struct, frozen=True, kw_only=True):
    """Record of the end, written by the supervisor, or by the engine if the supervisor vanished."""

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
    """Part of a launch that is kept on disk: nothing secret."""

    stop_signal: int = int(signal.SIGTERM)
    record: str = ""
    """File in memory with the launch; empty: the launch is in the same file."""


class UnitFolder:
    def __init__(self, path: Path, memory: Path | None = None) -> None:
        """`memory`: the engine's folder in memory; None: it has none."""
        self.path = path
        self._memory = memory / path.name if memory is not None else None
        self.work = path / "work"
        self.tmp = path / "tmp"
        """Folder that is /tmp in the task's view."""
        self.root = path / "root"
        """Mount point of the root of the task's view."""
        self.log = path / "log"
        self.supervisor_log = path / "supervisor.log"

    def make(self, *, open_to_pass: bool) -> None:
        """Create the folder; `open_to_pass`: other users may pass through it to the task's working folder."""
        self.path.mkdir(mode=0o700, exist_ok=True)
        if open_to_pass:
            self.path.chmod(0o711)

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def write_launch(self, record: dict[str, Any]) -> None:
        """Write the launch, which may have secrets, to memory if possible, and a note of it to disk."""
        if self._memory is None:
            self._write("launch.json", record)
            return
        self._memory.mkdir(mode=0o700, exist_ok=True)
        place = self._memory / "launch.json"
        replace(str(place), msgspec.json.encode(record))
        self._write("launch.json", _Note(stop_signal=record["stop_signal"], record=str(place)))

    def _forget_launch(self) -> None:
        """Delete the launch, the note on disk first: a supervisor that starts meanwhile finds nothing to run."""
        note = self._read("launch.json", _Note, _Note())
        (self.path / "launch.json").unlink(missing_ok=True)
        if note is not None and note.record:
            shutil.rmtree(Path(note.record).parent, ignore_errors=True)

    def write_stop(self, order: StopOrder) -> None:
        self._write("stop.json", order)

    def write_exit(self, record: Exit) -> None:
        """Write the exit record and delete the launch, which may have secrets."""
        self._write("exit.json", record, durable=True)
        self._forget_launch()

    def read_running(self) -> Running | None:
        return self._read("running.json", Running, Running(pid=0, started_at=0.0, boot=""))

    def read_exit(self) -> Exit | None:
        unreadable = Exit(code=None, reason="Vanished", message="the record of how it ended cannot be read")
        return self._read("exit.json", Exit, unreadable)

    def read_stop_signal(self) -> int | None:
        """Return the stop signal; None: there is no launch."""
        launch = self._read("launch.json", _Note, _Note())
        return None if launch is None else launch.stop_signal

    def read_supervisor_log(self) -> str:
        """Return the end of the supervisor's log, which has errors only."""
        try:
            return (
                self.supervisor_log.read_text(encoding="utf-8", errors="replace")[-2000:].strip() or "its log is empty"
            )
        except OSError:
            return "its log is empty"

    def supervisor(self) -> int | None:
        """Return the id of the process that holds the lock; None: there is none."""
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
        """Move the folder to the trash in one step; False: a supervisor has started in it."""
        try:
            file = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (FileNotFoundError, NotADirectoryError):
            return True
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A supervisor may still start in this folder: it must find nothing to run.
            self._forget_launch()
            os.rename(self.path, trash)
        except BlockingIOError:
            return False
        finally:
            os.close(file)
        return True

    def call_off(self) -> None:
        """Cancel a start: a supervisor that starts later finds nothing to run. One that has started can be stopped."""
        with suppress(OSError):  # BlockingIOError: a supervisor has started.
            file = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._forget_launch()
            finally:
                os.close(file)

    def _write(self, name: str, record: Any, *, durable: bool = False) -> None:
        replace(str(self.path / name), msgspec.json.encode(record), durable=durable)

    def _read(self, name: str, kind: type[T], unreadable: T) -> T | None:
        """Read a record; `unreadable`: the result for a damaged one, so that it affects only this unit."""
        try:
            return msgspec.json.decode((self.path / name).read_bytes(), type=kind)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except msgspec.DecodeError:
            return unreadable
