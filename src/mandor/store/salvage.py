"""Reads the readable part of a damaged SQLite store, from a copy of its files."""

import shutil
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from mandor.errors import Invalid
from mandor.model.codec import KINDS, decode
from mandor.model.meta import Object
from mandor.store.dump import EXCLUDED_KINDS
from mandor.store.file_check import HEADER, wal_of
from mandor.store.state_file import REVISION, content_of
from mandor.store.wal_repair import repair

PAGE_BYTES = 4096
ROWS = 500
"""Rows per query."""
STEPS_MOST = 10_000
"""Damaged ranges to skip at most."""


@dataclass(slots=True)
class Salvaged:
    """The readable part of a damaged store."""

    revision: int = 0
    """Revision of the state that was read; 0: unknown."""
    objects: dict[str, Object] = field(default_factory=dict)
    """By row key."""
    damaged: list[str] = field(default_factory=list)
    """Keys of rows whose content cannot be used."""
    gaps: list[tuple[str, str]] = field(default_factory=list)
    """Ranges of row keys that cannot be read: (last key before, first key after); empty: no bound."""
    unknown: int = 0
    """Rows of kinds that this version does not support."""
    problem: str = ""
    """Reason why nothing could be read; empty if something was."""
    repaired: bool = False
    """Whether frames after a damaged place of the write-ahead log are included."""

    @property
    def whole(self) -> bool:
        return not (self.damaged or self.gaps or self.problem)

    def misses(self, key: str) -> bool:
        """Return whether the row may have been in the store but was not read."""
        return key in self.damaged or any(after < key and (not before or key < before) for after, before in self.gaps)


def salvage(path: Path, workspace: Path) -> Salvaged:
    """Read the store in `path`, which is not changed; `workspace` is an empty folder for copies."""
    if not path.exists() or not path.stat().st_size:
        return Salvaged(problem=f"{path} is {'empty' if path.exists() else 'missing'}")
    plain = _read(_copy(path, workspace / "plain"))
    log = wal_of(path)
    if log.exists() and log.stat().st_size:
        copy = _copy(path, workspace / "repaired")
        if repair(wal_of(copy), _page_bytes(copy)):
            found = _read(copy)
            found.repaired = True
            # The repaired log may contain a page in a wrong place: then the unrepaired one is the better source.
            if found.revision > plain.revision and not found.gaps and len(found.damaged) <= len(plain.damaged) + 1:
                return found
    return plain


def _copy(path: Path, folder: Path) -> Path:
    folder.mkdir(mode=0o700)
    target = folder / "state.db"
    shutil.copyfile(path, target)
    if wal_of(path).exists():
        shutil.copyfile(wal_of(path), wal_of(target))
    with target.open("r+b") as file:
        start = bytearray(file.read(100).ljust(100, b"\0"))
        if start[:16] != HEADER:
            # The same in every store: page size, write-ahead logging, and the fractions of a page that are used.
            start[:24] = HEADER + PAGE_BYTES.to_bytes(2) + bytes([2, 2, 0, 64, 32, 32])
            file.seek(0)
            file.write(start)
    return target


def _page_bytes(path: Path) -> int:
    with path.open("rb") as file:
        found = int.from_bytes(file.read(18)[16:])
    return found if found in (512, 1024, 2048, 4096, 8192, 16384, 32768) else PAGE_BYTES


def _read(path: Path) -> Salvaged:
    found = Salvaged()
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            with suppress(sqlite3.Error, TypeError, ValueError):
                row = connection.execute("select data from objects where key = ?", (REVISION,)).fetchone()
                found.revision = int(row[0])
            _read_rows(connection, found)
    except sqlite3.Error as error:
        found.problem = f"cannot be read: {error}"
    if not found.objects and not found.problem:
        found.problem = "holds no object that can be read"
    found.revision = max([found.revision, *(item.meta.version for item in found.objects.values())])
    return found


def _read_rows(connection: sqlite3.Connection, found: Salvaged) -> None:
    """Read forwards; after an unreadable range, continue at the next readable key."""
    connection.execute("select count(*) from sqlite_master where name = 'objects'").fetchone()
    last = REVISION
    for _ in range(STEPS_MOST):
        error = _forwards(connection, last, found)
        last = max([last, *found.objects, *found.damaged])
        if error is None:
            return
        start = _next_readable(connection, last)
        if not start:
            _backwards(connection, last, found)
            return
        _backwards(connection, last, found, start)
        last = start
        _take(found, *_row(connection, start))


def _forwards(connection: sqlite3.Connection, last: str, found: Salvaged) -> sqlite3.Error | None:
    query = "select key, data from objects where key > ? order by key limit ?"
    try:
        while True:
            rows = connection.execute(query, (last, ROWS))
            count = 0
            for key, data in rows:
                _take(found, key, data)
                last, count = key, count + 1
            if not count:
                return None
    except sqlite3.Error as error:
        return error


def _backwards(connection: sqlite3.Connection, after: str, found: Salvaged, before: str = "") -> None:
    """Read backwards from the far side of a damaged range; the rest of the range is a gap."""
    nearest = before
    query = "select key, data from objects where key > ? and (? = '' or key < ?) order by key desc"
    with suppress(sqlite3.Error):
        for key, data in connection.execute(query, (after, before, before)):
            _take(found, key, data)
            nearest = key
    found.gaps.append((after, nearest))


def _next_readable(connection: sqlite3.Connection, last: str) -> str:
    """Return the next readable key, searched at growing distance; empty if there is none."""
    query = "select key from objects where key >= ? order by key limit 1"
    stem = last.partition("/")[0] or "0" * 24
    for place in range(len(stem) - 1, -1, -1):
        for digit in "0123456789abcdefg":
            if digit > stem[place]:
                with suppress(sqlite3.Error):
                    row = connection.execute(query, (stem[:place] + digit,)).fetchone()
                    if row is not None and _readable(connection, row[0]):
                        return str(row[0])
    return ""


def _readable(connection: sqlite3.Connection, key: str) -> bool:
    try:
        _row(connection, key)
    except sqlite3.Error:
        return False
    return True


def _row(connection: sqlite3.Connection, key: str) -> tuple[str, bytes]:
    found: tuple[str, bytes] = connection.execute("select key, data from objects where key = ?", (key,)).fetchone()
    if found is None:
        raise sqlite3.DatabaseError("the row is gone")
    return found


def _take(found: Salvaged, key: str, data: bytes) -> None:
    if not key or key in found.objects:
        return
    try:
        kind = key.split("/")[1]
        content = content_of(key, data)
        if kind not in KINDS:
            found.unknown += 1
        elif kind not in EXCLUDED_KINDS:
            found.objects[key] = decode(content)
    except (Invalid, IndexError, AttributeError, TypeError):
        found.damaged.append(str(key))
