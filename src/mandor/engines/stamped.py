"""Log files in the format of CRI runtimes: lines `TIME STREAM TAG TEXT`, a long line in several parts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from mandor.engines.base import LogLine

LOOK_SECONDS = 0.1
READ_BYTES = 256 * 1024
LINE_MOST = 1024 * 1024
"""Limit of bytes per line; a longer line is split."""


def older_files(path: Path) -> list[Path]:
    """Return the rotated files, the oldest first."""
    found = [each for each in path.parent.glob(f"{path.name}.*") if each.suffix[1:].isdecimal()]
    return sorted(found, key=lambda each: -int(each.suffix[1:]))


def rotate(path: Path, keep: int) -> None:
    """Rename `log` to `log.1`, `log.1` to `log.2` …; the runtime then has to open a new file."""
    for number in range(keep, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if not older.exists():
            continue
        if number >= keep - 1:
            older.unlink()
        else:
            os.replace(older, path.with_name(f"{path.name}.{number + 1}"))
    if keep > 1:
        os.replace(path, path.with_name(f"{path.name}.1"))
    else:
        path.unlink()


def stamp(at: float, stream: str, text: bytes, *, whole: bool = True) -> bytes:
    """Return one line of a log file."""
    time = datetime.fromtimestamp(at, UTC).isoformat(timespec="microseconds")
    return f"{time} {stream} {'F' if whole else 'P'} ".encode() + text + b"\n"


class LogParser:
    """Parses complete lines from received bytes."""

    def __init__(self) -> None:
        self._rest = b""
        self._parts: dict[str, list[bytes]] = {}

    def feed(self, data: bytes) -> Iterator[LogLine]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            yield from self._take(line)

    def _take(self, line: bytes) -> Iterator[LogLine]:
        time, _, after = line.partition(b" ")
        stream, _, after = after.partition(b" ")
        tag, _, text = after.partition(b" ")
        kind = stream.decode(errors="replace")
        parts = self._parts.setdefault(kind, [])
        parts.append(text)
        if tag.split(b":")[0] != b"P" or sum(map(len, parts)) > LINE_MOST:
            yield LogLine(parse_time(time.decode(errors="replace")), kind, b"".join(parts))
            parts.clear()


def parse_time(text: str) -> float:
    """Parse an RFC 3339 time with microseconds."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


async def read_logs(
    path: Path,
    *,
    follow: bool,
    tail: int | None,
    since: float | None,
    over: Callable[[], Awaitable[bool]],
) -> AsyncIterator[LogLine]:
    """Yield the lines of a log; `over`: returns whether the unit has ended."""
    parser = LogParser()
    kept: list[LogLine] = []
    handle: BinaryIO | None = None
    try:
        for file in older_files(path):
            kept = _last(kept + _older(parser, file, since), tail)
        handle = _open(path)
        if handle is not None:
            while data := handle.read(READ_BYTES):
                kept += [line for line in parser.feed(data) if since is None or line.at >= since]
                kept = _last(kept, tail)
                await asyncio.sleep(0)
        for line in kept:
            yield line
        while follow:
            ended = await over()
            handle = handle or _open(path)
            fresh = False
            while handle is not None and (data := handle.read(READ_BYTES)):
                fresh = True
                for line in parser.feed(data):
                    if since is None or line.at >= since:
                        yield line
            if handle is not None and _moved(handle.fileno(), path):
                handle.close()
                handle = None
                continue
            if ended and not fresh:
                return
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        if handle is not None:
            handle.close()


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


def _older(parser: LogParser, file: Path, since: float | None) -> list[LogLine]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return []  # Removed meanwhile.
    return [line for line in parser.feed(data) if since is None or line.at >= since]


def _last(lines: list[LogLine], count: int | None) -> list[LogLine]:
    return lines if count is None else lines[len(lines) - count :] if count < len(lines) else lines


def _moved(descriptor: int, path: Path) -> bool:
    """Return whether the file that is being read was rotated."""
    try:
        return os.fstat(descriptor).st_ino != path.stat().st_ino
    except FileNotFoundError:
        return False
