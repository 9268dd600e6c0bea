"""Recording: writes the changes of a live cluster to a bounded file, for replay in the simulator."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from mandor.errors import Expired, Invalid, MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.recording import (
    KINDS,
    AnyLine,
    ProfilesLine,
    RecordingEnd,
    RecordingStart,
    SnapshotEnd,
    SnapshotStart,
    UsageLine,
    change_of,
    line_of,
    read_line,
    write_line,
)
from mandor.model.usage import InstanceUsage
from mandor.store.base import Change, Listing, Store
from mandor.store.list_watch import ListWatch

log = logging.getLogger("mandor.recording")

BYTES_MOST = 64 << 20  # per recording
BYTES_LEAST = 64 << 10
LOOK_SECONDS = 30.0
"""Seconds between two samples of usage and of the scheduler's configuration."""
AGAIN_SECONDS = 30.0  # until the next attempt after a failure
BACKOFF = Backoff(first_seconds=AGAIN_SECONDS, most_seconds=AGAIN_SECONDS)
HEADER_MOST = 64 << 10

Uses = Callable[[], Iterable[Mapping[str, InstanceUsage]]]
"""Returns the current usage of the instances of each node, by `namespace/name`."""
Blocking = Callable[..., Any]


def nothing_used() -> Iterable[Mapping[str, InstanceUsage]]:
    return ()


class Recording:
    """`run` writes until it is cancelled. Two parts are kept, the older as `FILE.1`; each starts with a full snapshot.

    Writers of the store never wait for the recording. When it falls behind, it records that, and a new snapshot.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        path: Path,
        began: RecordingStart,
        *,
        profiles: Callable[[], str] = lambda: "",
        uses: Uses = nothing_used,
        bytes_most: int = BYTES_MOST,
        blocking: Blocking = asyncio.to_thread,
    ) -> None:
        self._store, self._clock, self._path = store, clock, path
        self._header, self._profiles, self._uses = began, profiles, uses
        self._part_most = max(bytes_most, BYTES_LEAST) // 2
        self._blocking = blocking
        self._file: BinaryIO | None = None
        self._size = 0
        self._first_size = 0
        """Bytes of the snapshot at the start of a part; a part is at least twice as large."""
        self._known: dict[Key, Object] = {}
        self._text: str | None = None
        self._looked = -LOOK_SECONDS
        self._why = ""
        """Reason for the last interruption."""

    async def run(self) -> None:
        try:
            while True:
                try:
                    await ListWatch(self._store, None, backoff=BACKOFF, sleep=self._clock.sleep).run(
                        self._snapshot, self._record, self._interrupted
                    )
                except OSError as error:
                    self._why = f"the file could not be written: {error.strerror or error}"
                    log.warning("%s: %s; next attempt in %g s", self._path, self._why, AGAIN_SECONDS)
                    self._drop_file()
                    await self._clock.sleep(AGAIN_SECONDS)
        finally:
            self._end()

    def _interrupted(self, error: MandorError, failures: int) -> None:
        if isinstance(error, Expired):
            self._why = "changes arrived faster than they could be written"
        else:
            self._why = str(error)
            log.warning("the recording is interrupted: %s", error)

    async def _snapshot(self, listing: Listing) -> None:
        self._known = {each.key: each for each in listing.items if each.kind in KINDS}
        if self._file is None:
            await self._begin_part()
        else:
            await self._write(self._everything(self._why))

    async def _record(self, batch: Sequence[Change]) -> None:
        lines = self._seen(batch) + self._look()
        if lines:
            await self._write(lines)
        if self._size > max(self._part_most, 2 * self._first_size):
            await self._begin_part()

    def _seen(self, batch: Sequence[Change]) -> list[AnyLine]:
        now = self._clock.now()
        lines: list[AnyLine] = []
        for change in batch:
            line = None if change.bookmark else change_of(now, change.before, change.after)
            if line is None:
                continue
            lines.append(line)
            if change.after is None:
                self._known.pop(change.key, None)
            else:
                self._known[change.key] = change.after
        return lines

    def _look(self) -> list[AnyLine]:
        """Return a sample of usage and of the scheduler's configuration, if one is due."""
        if self._clock.monotonic() - self._looked < LOOK_SECONDS:
            return []
        self._looked = self._clock.monotonic()
        used = self._used()
        lines: list[AnyLine] = [UsageLine(at=self._clock.now(), workloads=used)] if used else []
        text = self._profiles()
        if text != self._text:
            self._text = text
            lines.append(ProfilesLine(at=self._clock.now(), text=text))
        return lines

    def _used(self) -> dict[str, tuple[int, int]]:
        found: dict[str, list[InstanceUsage]] = {}
        for node in self._uses():
            for name, usage in node.items():
                instance = self._known.get(Key(Instance.kind, *name.split("/", 1)))
                if isinstance(instance, Instance):
                    found.setdefault(f"{instance.meta.namespace}/{instance.spec.workload}", []).append(usage)
        return {
            name: (sum(each.cpu_milli for each in all_) // len(all_), max(each.memory_bytes for each in all_))
            for name, all_ in sorted(found.items())
        }

    # The file.

    def _everything(self, why: str = "") -> list[AnyLine]:
        now = self._clock.now()
        return [
            SnapshotStart(at=now, why=why),
            *(line_of(now, each) for each in self._known.values()),
            SnapshotEnd(at=now),
        ]

    async def _begin_part(self) -> None:
        now = self._clock.now()
        self._drop_file()
        await self._blocking(self._open, now)
        self._text = self._profiles()
        await self._write([self._header, ProfilesLine(at=now, text=self._text), *self._everything()])
        self._first_size = self._size

    def _open(self, now: float) -> None:
        before = self._path.with_name(self._path.name + ".1")
        last = _header_of(self._path)
        check_recordable(self._path)
        if last is not None:
            os.replace(self._path, before)
        part = 1 if last is None else last.part + 1
        self._header = msgspec.structs.replace(self._header, at=now, part=part, dropped=max(0, part - 2))
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file, self._size = os.fdopen(descriptor, "ab"), 0

    async def _write(self, lines: Sequence[AnyLine]) -> None:
        await self._blocking(self._append, lines)

    def _append(self, lines: Sequence[AnyLine]) -> None:
        assert self._file is not None
        data = b"".join(map(write_line, lines))
        self._file.write(data)
        self._file.flush()
        self._size += len(data)

    def _drop_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _end(self) -> None:
        try:
            if self._file is not None:
                self._append([RecordingEnd(at=self._clock.now())])
            self._drop_file()
        except OSError as error:
            log.warning("%s: %s", self._path, error)


def check_recordable(path: Path) -> None:
    """Raise `Invalid` if the path is not an old recording, an empty file or a new file in an existing folder."""
    if path.is_dir():
        raise Invalid(f"{path} is a folder", hint="name a file")
    if path.exists() and path.stat().st_size and _header_of(path) is None:
        raise Invalid(f"{path} exists and is not a recording; it was not changed", hint="name another file")
    if not path.absolute().parent.is_dir():
        raise Invalid(f"cannot record to {path}: the folder {path.parent} does not exist")


def _header_of(path: Path) -> RecordingStart | None:
    """Return the first line of a recording; None if the file is not a recording."""
    try:
        with path.open("rb") as file:
            line = read_line(file.readline(HEADER_MOST))
    except (OSError, Invalid):
        return None
    return line if isinstance(line, RecordingStart) else None
