"""The folder of a unit with a command, shared with its container: output and exit code. The container is not
trusted."""

from __future__ import annotations

import ctypes
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mandor.engines.stamped import rotate, stamp

READ_BYTES = 256 * 1024
LINE_MOST = 64 * 1024
"""Limit of bytes per line; a longer line is split."""
SMALL_BYTES = 4096
STREAMS = {"out": "stdout", "err": "stderr"}
_PUNCH = 0x02 | 0x01
"""FALLOC_FL_PUNCH_HOLE, FALLOC_FL_KEEP_SIZE"""


@dataclass(frozen=True, slots=True)
class Ending:
    code: int | None
    """Exit code; None: the command never started, and `message` has the reason."""
    message: str
    at: float


class UnitFolder:
    """`io` is shared with the container: its content is not trusted, and no link in it is followed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.io = path / "io"
        self.log = path / "log"
        self._offsets = path / "offsets"

    def make(self) -> None:
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.io.mkdir(exist_ok=True)
        self.io.chmod(0o777)  # Users of the container have other ids here; the folder above is closed to all others.

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def begun_at(self) -> float | None:
        try:
            return os.lstat(self.io / "begun").st_mtime
        except OSError:
            return None

    def ending(self) -> Ending | None:
        with self._open("exit") as descriptor:
            if descriptor is None:
                return None
            words = os.read(descriptor, SMALL_BYTES).decode(errors="replace").strip()
            at = os.fstat(descriptor).st_mtime
        kind, _, rest = words.partition(" ")
        if kind == "ended" and rest.isdecimal():
            return Ending(min(int(rest), 255), "", at)
        return Ending(None, rest or "the record of its end cannot be read", at)

    def process(self) -> int | None:
        """Return the process id of the command inside the container; None: not known."""
        with self._open("pid") as descriptor:
            words = os.read(descriptor, SMALL_BYTES).strip() if descriptor is not None else b""
        return int(words) if words.isdigit() and len(words) < 10 else None

    def collect(self, size: int, keep: int, *, over: bool = False) -> bool:
        """Move new output to the log, with times, and return whether there was any; `over`: the command has ended."""
        offsets = self._read_offsets()
        found = False
        for name, stream in STREAMS.items():
            with self._open(name, os.O_RDWR) as descriptor:
                if descriptor is None:
                    continue
                while data := os.pread(descriptor, READ_BYTES, offsets.get(name, 0)):
                    taken, lines = _cut(data, stream, time.time(), rest=over or len(data) >= LINE_MOST)
                    if not taken:
                        break
                    found = True
                    self._append(lines, size, keep)
                    offsets[name] = offsets.get(name, 0) + taken
                    self._write_offsets(offsets)
                    _punch(descriptor, offsets[name])
        return found

    def _append(self, lines: bytes, size: int, keep: int) -> None:
        with suppress(FileNotFoundError):
            if self.log.stat().st_size > size:
                rotate(self.log, keep)
        with self.log.open("ab") as log:
            log.write(lines)

    def _read_offsets(self) -> dict[str, int]:
        try:
            return msgspec.json.decode(self._offsets.read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write_offsets(self, offsets: dict[str, int]) -> None:
        draft = self._offsets.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(offsets))
        os.replace(draft, self._offsets)

    @contextmanager
    def _open(self, name: str, flags: int = os.O_RDONLY) -> Iterator[int | None]:
        try:
            descriptor = os.open(self.io / name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            yield None
            return
        try:
            yield descriptor if stat.S_ISREG(os.fstat(descriptor).st_mode) else None
        finally:
            os.close(descriptor)


def _cut(data: bytes, stream: str, now: float, *, rest: bool) -> tuple[int, bytes]:
    """Return the number of bytes in complete lines, and these lines with their time; `rest`: also an incomplete
    line."""
    *lines, left = data.split(b"\n")
    stamped = [stamp(now, stream, part, whole=last) for line in lines for part, last in _parts(line)]
    taken = len(data) - len(left)
    if rest and left and (not lines or len(data) < READ_BYTES):
        stamped += [stamp(now, stream, part, whole=last and len(data) < LINE_MOST) for part, last in _parts(left)]
        taken = len(data)
    return taken, b"".join(stamped)


def _parts(line: bytes) -> Iterator[tuple[bytes, bool]]:
    pieces = [line[at : at + LINE_MOST] for at in range(0, len(line), LINE_MOST)] or [b""]
    for piece in pieces:
        yield piece, piece is pieces[-1]


def _punch(descriptor: int, end: int) -> None:
    """Free the disk blocks of read output; without support of the file system they stay until the unit is removed."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    call(descriptor, _PUNCH, ctypes.c_longlong(0), ctypes.c_longlong(end))
