"""Examines a SQLite file before a server uses it, through a read-only connection that changes nothing."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import msgspec

from mandor.errors import Invalid
from mandor.lib.lock import LockHeld, hold
from mandor.model.codec import decode
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.marked import check_not_older
from mandor.store.marker import MarkerContent
from mandor.store.state_file import APPLICATION_ID, REVISION, content_of

HEADER = b"SQLite format 3\0"
HINT = "`mandor recover` shows what can be saved; no file has been changed"


def check_file(path: Path, known: MarkerContent | None, *, accept_older: bool = False) -> None:
    """Raise `Invalid` if the file is damaged, or holds an older state than the marker file."""
    try:
        with hold(path.with_name(path.name + ".lock")):
            _check(path, known, accept_older=accept_older)
    except (LockHeld, OSError):
        return  # The store itself reports why it cannot be opened.


def _check(path: Path, known: MarkerContent | None, *, accept_older: bool) -> None:
    size = path.stat().st_size if path.exists() else -1
    log_bytes = _size(wal_of(path))
    if size <= 0:
        state = "is missing" if size < 0 else "is empty"
        if log_bytes:
            raise Invalid(f"{path} {state}, and its write-ahead log holds {log_bytes} bytes", hint=HINT)
        if known is not None:
            raise Invalid(
                f"{path} {state}; it held cluster {known.cluster} up to revision {known.revision}",
                hint="check --data; `mandor recover` or `mandor restore` bring a lost state back",
            )
        return
    with path.open("rb") as file:
        if file.read(len(HEADER)) != HEADER:
            raise Invalid(f"{path} is not a database: its header is overwritten", hint=HINT)
    try:
        with closing(open_read_only(path)) as connection:
            _check_content(connection, path, known, accept_older=accept_older)
    except sqlite3.Error as error:
        raise Invalid(f"{path} is damaged: {error}", hint=HINT) from error
    finally:
        with suppress(OSError):
            os.unlink(path.with_name(path.name + "-shm"))


def _check_content(
    connection: sqlite3.Connection, path: Path, known: MarkerContent | None, *, accept_older: bool
) -> None:
    (owner,) = connection.execute("pragma application_id").fetchone()
    (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
    if not tables and not owner:
        if known is not None:
            check_not_older(None, 0, known, accept_older=accept_older)
        return  # A server died before its first commit.
    if owner != APPLICATION_ID:
        return  # The store itself refuses databases of other programs.
    (result,) = connection.execute("pragma quick_check(1)").fetchone()
    if result != "ok":
        raise Invalid(f"{path} is damaged: {result}", hint=HINT)
    row = connection.execute("select data from objects where key = ?", (REVISION,)).fetchone()
    if row is None:
        raise Invalid(f"{path} is damaged: its revision is missing", hint=HINT)
    revision = int(row[0])
    if known is not None and revision < known.revision:
        check_not_older(_cluster(connection), revision, known, accept_older=accept_older)


def _cluster(connection: sqlite3.Connection) -> ClusterSpec | None:
    for key, data in connection.execute("select key, data from objects where key like '%/cluster//cluster'"):
        with suppress(Invalid, msgspec.DecodeError):
            found = decode(content_of(key, data))
            if isinstance(found, Cluster):
                return found.spec
    return None


def open_read_only(path: Path) -> sqlite3.Connection:
    """Return a connection that neither writes the file nor checkpoints its write-ahead log."""
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, timeout=0)


def wal_of(path: Path) -> Path:
    """Return the path of a database's write-ahead log."""
    return path.with_name(path.name + "-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
