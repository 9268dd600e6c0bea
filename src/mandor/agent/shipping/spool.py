"""Buffer of lines on disk: bounded, ordered, and preserved across crashes.

A directory of segments, each a file of lines as JSON. New lines go to the last one; a cursor marks how far the first
one is delivered. When the buffer is full, the oldest segment is deleted and its lines are counted as dropped.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from mandor.agent.journal import replace_file
from mandor.agent.shipping.line import Line

SUFFIX = ".lines"
PARTS = 8
"""Number of segments of a full buffer; one is dropped at a time."""
READ_BYTES = 1 << 20

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Line)


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """Position of the first line that is not delivered."""

    segment: int = 0
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines read from the buffer, with the position after them."""

    lines: Sequence[Line]
    segment: int
    end: int
    """Offset of the next line in the segment."""
    damaged: int = 0
    """Number of lines in between that cannot be read."""


@dataclass(slots=True)
class _Segment:
    number: int
    path: Path
    size: int = 0
    lines: int = 0
    """Lines that are not delivered yet."""


class Spool:
    """The buffer of one sink; not safe for concurrent threads."""

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self._folder = folder
        self._most, self._part = most_bytes, max(1, most_bytes // PARTS)
        self.dropped = 0
        """Lines dropped because the buffer was full or they were damaged, since this object was created."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._cursor = self._read_cursor()
        self._segments = self._find()
        self._trim()

    @property
    def waiting(self) -> int:
        return sum(each.lines for each in self._segments)

    @property
    def size(self) -> int:
        return sum(each.size for each in self._segments)

    def resize(self, most_bytes: int) -> None:
        self._most, self._part = most_bytes, max(1, most_bytes // PARTS)
        self._trim()

    def append(self, lines: Sequence[Line]) -> None:
        """Append lines; a crash of this process after that loses none. `OSError`: none was written,
        or a part of the last segment."""
        start = 0
        while start < len(lines):
            segment = self._last()
            count, data = _fill(lines, start, self._part - segment.size)
            if not count:
                segment = self._add(segment.number + 1)
                count, data = _fill(lines, start, max(self._part, 1), at_least_one=True)
            with segment.path.open("ab") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(data)
            segment.size += len(data)
            segment.lines += count
            start += count
            self._trim()

    def read(self, most_lines: int) -> Batch | None:
        """Return the oldest lines; None: the buffer is empty. Repeated reads return the same lines until `done`."""
        while self._segments:
            segment = self._segments[0]
            start = self._cursor.offset if self._cursor.segment == segment.number else 0
            batch = _read(segment, start, most_lines)
            if batch is not None:
                return batch
            if len(self._segments) == 1:
                return None
            self._remove(segment)
        return None

    def done(self, batch: Batch) -> None:
        """Remove a batch that was delivered or refused."""
        self.dropped += batch.damaged
        segment = next((each for each in self._segments if each.number == batch.segment), None)
        if segment is None:
            self.dropped -= len(batch.lines) + batch.damaged  # The segment was dropped after the batch was read.
            return
        segment.lines -= len(batch.lines) + batch.damaged
        self._cursor = Cursor(batch.segment, batch.end)
        replace_file(self._folder / "cursor.json", msgspec.json.encode(self._cursor), durable=False)
        if batch.end >= segment.size and len(self._segments) > 1:
            self._remove(segment)

    def _last(self) -> _Segment:
        return self._segments[-1] if self._segments else self._add(self._cursor.segment + 1)

    def _add(self, number: int) -> _Segment:
        self._segments.append(_Segment(number, self._folder / f"{number:012d}{SUFFIX}"))
        return self._segments[-1]

    def _remove(self, segment: _Segment) -> None:
        segment.path.unlink(missing_ok=True)
        self._segments.remove(segment)

    def _trim(self) -> None:
        """Delete the oldest segments of a buffer that is too large; the last segment stays, for new lines."""
        while self.size > self._most and len(self._segments) > 1:
            self.dropped += self._segments[0].lines
            self._remove(self._segments[0])

    def _read_cursor(self) -> Cursor:
        try:
            return msgspec.json.decode((self._folder / "cursor.json").read_bytes(), type=Cursor)
        except (FileNotFoundError, msgspec.MsgspecError):
            return Cursor()

    def _find(self) -> list[_Segment]:
        found = []
        for path in sorted(self._folder.glob(f"*{SUFFIX}")):
            number = int(path.name.removesuffix(SUFFIX))
            if number < self._cursor.segment:
                path.unlink()
                continue
            start = self._cursor.offset if number == self._cursor.segment else 0
            size, lines = _survey(path, start)
            found.append(_Segment(number, path, size, lines))
        return found


def _fill(lines: Sequence[Line], start: int, room: int, *, at_least_one: bool = False) -> tuple[int, bytes]:
    """Return how many lines from `start` on fit into `room`, and their bytes."""
    data = bytearray()
    count = 0
    for line in lines[start:]:
        encoded = _encoder.encode(line) + b"\n"
        if len(data) + len(encoded) > room and not (at_least_one and not count):
            break
        data += encoded
        count += 1
    return count, bytes(data)


def _survey(path: Path, start: int) -> tuple[int, int]:
    """Return size and number of lines from `start` on; an incomplete last line is truncated."""
    lines, whole = 0, start
    with path.open("r+b") as file:
        place = file.seek(start)
        while data := file.read(READ_BYTES):
            lines += data.count(b"\n")
            if (last := data.rfind(b"\n")) >= 0:
                whole = place + last + 1
            place += len(data)
        if place != whole:
            file.truncate(whole)
    return whole, lines


def _read(segment: _Segment, start: int, most_lines: int) -> Batch | None:
    lines: list[Line] = []
    end, damaged = start, 0
    try:
        with segment.path.open("rb") as file:
            file.seek(start)
            while len(lines) < most_lines and end - start < READ_BYTES and (text := file.readline()).endswith(b"\n"):
                end += len(text)
                try:
                    lines.append(_decoder.decode(text))
                except msgspec.MsgspecError:
                    damaged += 1
    except FileNotFoundError:
        return None
    return Batch(lines, segment.number, end, damaged) if lines or damaged else None
