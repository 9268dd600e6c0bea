"""Recording: what happens in a live cluster, written to a bounded file by a watcher of its own."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from mandor.errors import Expired, Invalid, MandorError
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.recording import (
    KINDS,
    AnyLine,
    Began,
    Complete,
    Ended,
    Profiles,
    Used,
    Whole,
    change_of,
    line_of,
    read_line,
    write_line,
)
from mandor.model.usage import InstanceUsage
from mandor.store.base import Change, Store

log = logging.getLogger("mandor.recording")

BYTES_MOST = 64 << 20
BYTES_LEAST = 64 << 10
LOOK_SECONDS = 30.0
"""So often usage and the scheduler's configuration are looked at."""
AGAIN_SECONDS = 30.0
HEADER_MOST = 64 << 10

Uses = Callable[[], Iterable[Mapping[str, InstanceUsage]]]
"""What instances use now, by `namespace/name`, of each node that is heard."""
Blocking = Callable[..., Any]


def nothing_used() -> Iterable[Mapping[str, InstanceUsage]]:
    return ()


class Recording:
    """`run` writes until it is cancelled. Two parts are kept, the older as `FILE.1`; each begins with all there is.

    Who changes the store never waits for it: it falls behind, says so, and begins anew with all there is.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        path: Path,
        began: Began,
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
        """Of what a part begins with: without more than that, another one would be no shorter."""
        self._known: dict[Key, Object] = {}
        self._text: str | None = None
        self._looked = -LOOK_SECONDS

    async def run(self) -> None:
        why = ""
        try:
            while True:
                try:
                    await self._follow(why)
                except Expired:
                    why = "changes came faster than they could be written"
                except OSError as error:
                    why = f"it could not be written: {error.strerror or error}"
                    log.warning("%s: %s; again in %g s", self._path, why, AGAIN_SECONDS)
                    self._drop_file()
                    await self._clock.sleep(AGAIN_SECONDS)
                except MandorError as error:
                    why = str(error)
                    log.warning("the recording is interrupted: %s", error)
                    await self._clock.sleep(AGAIN_SECONDS)
        finally:
            self._end()

    async def _follow(self, why: str) -> None:
        listing = await self._store.list(None)
        self._known = {each.key: each for each in listing.items if each.kind in KINDS}
        if self._file is None:
            await self._begin_part()
        else:
            await self._write(self._everything(why))
        async for batch in self._store.watch(None, since=listing.revision):
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
        """Now and then: what is used, and by which rules work is placed."""
        if self._clock.monotonic() - self._looked < LOOK_SECONDS:
            return []
        self._looked = self._clock.monotonic()
        used = self._used()
        lines: list[AnyLine] = [Used(at=self._clock.now(), workloads=used)] if used else []
        text = self._profiles()
        if text != self._text:
            self._text = text
            lines.append(Profiles(at=self._clock.now(), text=text))
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
        return [Whole(at=now, why=why), *(line_of(now, each) for each in self._known.values()), Complete(at=now)]

    async def _begin_part(self) -> None:
        now = self._clock.now()
        self._drop_file()
        await self._blocking(self._open, now)
        self._text = self._profiles()
        await self._write([self._header, Profiles(at=now, text=self._text), *self._everything()])
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
                self._append([Ended(at=self._clock.now())])
            self._drop_file()
        except OSError as error:
            log.warning("%s: %s", self._path, error)


def check_recordable(path: Path) -> None:
    """What is there already is a recording, or nothing; `Invalid`: something else, which is left alone."""
    if path.is_dir():
        raise Invalid(f"{path} is a folder", hint="give a file")
    if path.exists() and path.stat().st_size and _header_of(path) is None:
        raise Invalid(f"{path} is no recording, and is left alone", hint="give another file")
    if not path.absolute().parent.is_dir():
        raise Invalid(f"there is no folder {path.parent} for the recording")


def _header_of(path: Path) -> Began | None:
    """None: there is no recording."""
    try:
        with path.open("rb") as file:
            line = read_line(file.readline(HEADER_MOST))
    except (OSError, Invalid):
        return None
    return line if isinstance(line, Began) else None
