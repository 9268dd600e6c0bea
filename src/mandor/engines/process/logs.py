"""Reads the log files of a task across rotations, from any point, and follows them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from mandor.engines.base import LogLine

CHUNK_BYTES = 256 * 1024
POLL_SECONDS = 0.2
FILES_MAX = 100
_STREAMS = {b"o": "stdout", b"e": "stderr"}


def read_logs(
    path: Path, over: Callable[[], bool] | None, *, tail: int | None = None, since: float | None = None
) -> AsyncIterator[LogLine]:
    """Yield the last `tail` lines or all, none before `since`; with `over`, follow the log until `over` returns
    True."""
    return _stream(LogReader(path), over, tail, since)


async def _stream(
    reader: LogReader, over: Callable[[], bool] | None, tail: int | None, since: float | None
) -> AsyncIterator[LogLine]:
    try:
        await asyncio.to_thread(reader.begin, tail, since)
        while True:
            ended = over is None or over()  # Checked before reading, so that the last lines are read.
            lines = await asyncio.to_thread(reader.read)
            for line in lines:
                if since is None or line.at >= since:
                    yield line
            if not lines:
                if ended:
                    return
                await asyncio.sleep(POLL_SECONDS)
    finally:
        reader.close()


class LogReader:
    """A position in the sequence of log files. Files are identified by inode, because rotation renames them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._rest = b""

    def begin(self, tail: int | None, since: float | None) -> None:
        """Go to the first line that can match."""
        files = list(self._open_all())
        if not files:
            return
        chosen, offset = 0, 0
        if tail is not None:
            chosen, offset = _find_tail(files, tail)
        elif since is not None:
            while chosen < len(files) - 1 and os.fstat(files[chosen].fileno()).st_mtime < since:
                chosen += 1
        self._file = files[chosen]
        self._file.seek(offset)
        for index, file in enumerate(files):
            if index != chosen:
                file.close()

    def read(self) -> list[LogLine]:
        """Return more lines; none: the end was reached."""
        while True:
            if self._file is None and not self._open_next(None):
                return []
            assert self._file is not None
            data = self._file.read(CHUNK_BYTES)
            if data:
                *whole, self._rest = (self._rest + data).split(b"\n")
                lines = [line for text in whole if (line := _parse(text)) is not None]
                if lines:
                    return lines
            elif not self._move_on():
                return []

    def _move_on(self) -> bool:
        """Open the next file if this one was rotated and read to its end."""
        assert self._file is not None
        status = os.fstat(self._file.fileno())
        if _same(self._path, status.st_ino):
            return False
        if self._file.tell() < status.st_size:
            return True
        return self._open_next(status.st_ino)

    def _open_next(self, inode: int | None) -> bool:
        """Open the file after the one with this inode; the oldest file, if that one is gone."""
        files = list(self._open_all())
        numbers = [os.fstat(file.fileno()).st_ino for file in files]
        index = numbers.index(inode) + 1 if inode in numbers else 0
        chosen = files[index] if index < len(files) else None
        for file in files:
            if file is not chosen:
                file.close()
        if chosen is None:
            return False
        self.close()
        self._file, self._rest = chosen, b""
        return True

    def _open_all(self) -> Iterator[BinaryIO]:
        """Open all files, the oldest first, each once, also if they are renamed meanwhile."""
        seen = set()
        names = [self._path, *(Path(f"{self._path}.{number}") for number in range(1, FILES_MAX))]
        files: list[BinaryIO] = []
        for name in names:
            try:
                file = name.open("rb", buffering=0)
            except FileNotFoundError:
                if name is not self._path:
                    break
                continue
            inode = os.fstat(file.fileno()).st_ino
            if inode in seen:
                file.close()
                continue
            seen.add(inode)
            files.append(file)
        return reversed(files)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _same(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except FileNotFoundError:
        return True  # Between two renames, or removed: there is no next file.


def _find_tail(files: list[BinaryIO], lines: int) -> tuple[int, int]:
    """Return the file and the offset where the last `lines` lines start."""
    wanted = lines + 1  # The line end before it.
    for index in range(len(files) - 1, -1, -1):
        file = files[index]
        end = file.seek(0, os.SEEK_END)
        if index == len(files) - 1 and lines == 0:
            return index, end
        while end > 0:
            start = max(0, end - CHUNK_BYTES)
            file.seek(start)
            data = file.read(end - start)
            count = data.count(b"\n")
            if count >= wanted:
                place = len(data)
                for _ in range(wanted):
                    place = data.rfind(b"\n", 0, place)
                return index, start + place + 1
            wanted -= count
            end = start
    return 0, 0


def _parse(line: bytes) -> LogLine | None:
    at, _, rest = line.partition(b" ")
    stream, space, text = rest.partition(b" ")
    if not space or stream not in _STREAMS:
        return None
    try:
        return LogLine(float(at), _STREAMS[stream], text)
    except ValueError:
        return None
