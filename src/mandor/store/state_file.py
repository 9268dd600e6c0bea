"""The SQLite file under a store: one connection, used by one thread; no threads and no waiting in here."""

import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from mandor.errors import Invalid, Unavailable
from mandor.lib.lock import Held, hold
from mandor.model.codec import KINDS, decode
from mandor.model.meta import Key, Object

log = logging.getLogger(__name__)

APPLICATION_ID = 0x4D4E4452  # "MNDR", at a fixed place in the file: `file` and we know our own
FORMAT = 1
SCHEMA = """
create table objects (key text primary key, data blob not null) without rowid;
create table facts (name text primary key, value integer not null) without rowid;
insert into facts values ('revision', 0);
"""
CHUNKS = (256, 64, 16, 4, 1)
"""Rows of one statement. Python takes its global lock back after every statement, and waits for
it while the event loop is busy: few large statements let the two run side by side."""


def row_key(key: Key) -> str:
    return "/".join(key)


class StateFile:
    """Opened by its constructor, which refuses what is not ours, damaged, newer, or in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._held = ExitStack()
        try:
            self._lock()
            self._connection = self._connect()
        except BaseException:
            self._held.close()
            raise

    # Opening.

    def _lock(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._held.enter_context(hold(self.path.with_name(self.path.name + ".lock")))
        except Held as error:
            raise Unavailable(
                f"{self.path} is in use by process {error.holder or '?'}",
                hint="a store in a file belongs to one server; stop the other one, or move the cluster to etcd",
            ) from error
        except OSError as error:
            raise Unavailable(f"cannot use {self.path}: {error.strerror}", hint="check the folder's rights") from error

    def _connect(self) -> sqlite3.Connection:
        self._create()
        connection = sqlite3.connect(self.path, isolation_level=None, cached_statements=64, timeout=0)
        try:
            self._check(connection)
            self._prepare(connection)
            _revision(connection)
        except sqlite3.Error as error:
            connection.close()
            raise self._refused(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self) -> None:
        """Nobody else may read it: it holds what opens the cluster."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise Unavailable(f"cannot use {self.path}: {error.strerror}", hint="check the file's rights") from error

    def _check(self, connection: sqlite3.Connection) -> None:
        (owner,) = connection.execute("pragma application_id").fetchone()
        (version,) = connection.execute("pragma user_version").fetchone()
        (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
        if owner != APPLICATION_ID and (owner or version or tables):
            raise Invalid(f"{self.path} is a database of another program", hint="name another file")
        if version > FORMAT:
            raise Invalid(
                f"{self.path} was written by a newer mandor (format {version}; this one knows {FORMAT})",
                hint="upgrade mandor",
            )

    @staticmethod
    def _prepare(connection: sqlite3.Connection) -> None:
        # Exclusive: no other program gets at the file, so the write-ahead log has exactly one user,
        # and its index lives in our memory. FULL: a commit is on the disk when it returns.
        connection.execute("pragma locking_mode=exclusive")
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("pragma cache_size=-16384")
        connection.execute("pragma wal_autocheckpoint=4000")
        connection.execute("pragma journal_size_limit=67108864")
        (owner,) = connection.execute("pragma application_id").fetchone()
        if owner != APPLICATION_ID:
            connection.executescript(
                f"begin; {SCHEMA} pragma application_id={APPLICATION_ID}; pragma user_version={FORMAT}; commit;"
            )

    def _refused(self, error: sqlite3.Error) -> Invalid | Unavailable:
        story = f"cannot use {self.path}: {error}"
        if isinstance(error, sqlite3.OperationalError):
            return Unavailable(story, hint="check the disk, its free room and the file's rights")
        return Invalid(story, hint="it is damaged or no database: move it away and restore a backup")

    # Reading, once.

    @property
    def revision(self) -> int:
        return _revision(self._connection)

    def read(self) -> Iterator[Object]:
        """Every object; `Invalid` for one that cannot be understood, and a warning for kinds of a later version."""
        unknown: dict[str, int] = {}
        try:
            for key, data in self._connection.execute("select key, data from objects"):
                kind = key.partition("/")[0]
                if kind not in KINDS:
                    unknown[kind] = unknown.get(kind, 0) + 1
                    continue
                try:
                    yield decode(data)
                except Invalid as error:
                    raise Invalid(
                        f"{self.path} holds {key}, which this version of mandor cannot read: {error}",
                        hint="was it written by a newer version? upgrade mandor, or restore a backup",
                    ) from error
        except sqlite3.Error as error:
            raise self._refused(error) from error
        for kind, count in sorted(unknown.items()):
            log.warning("%s holds %d objects of the unknown kind %s; they are left alone", self.path, count, kind)

    # Writing.

    def write(self, rows: Mapping[str, bytes | None], revision: int) -> None:
        """Store the rows (None: remove) and the revision, all or nothing; `Unavailable` if that failed."""
        try:
            self._write(rows, revision)
        except sqlite3.Error as error:
            if self._recover() == revision:
                return  # It reported an error, but it is stored.
            raise Unavailable(
                f"cannot write {self.path}: {error}",
                hint="is the disk full? Commits work again as soon as there is room",
            ) from error

    def _write(self, rows: Mapping[str, bytes | None], revision: int) -> None:
        puts: list[str | bytes] = [
            value for row in rows.items() if row[1] is not None for value in row if value is not None
        ]
        gone: list[str | bytes] = [key for key, data in rows.items() if data is None]
        execute = self._connection.execute
        execute("begin immediate")
        for chunk in _chunks(puts, 2):
            values = ",".join(["(?,?)"] * (len(chunk) // 2))
            execute(f"insert or replace into objects values {values}", chunk)  # noqa: S608 - only question marks
        for chunk in _chunks(gone, 1):
            marks = ",".join("?" * len(chunk))
            execute(f"delete from objects where key in ({marks})", chunk)  # noqa: S608 - only question marks
        execute("update facts set value = ? where name = 'revision'", (revision,))
        execute("commit")

    def _recover(self) -> int | None:
        """After an error: the revision that is stored; a connection that does not answer is made anew."""
        with suppress(sqlite3.Error):
            if self._connection.in_transaction:
                self._connection.execute("rollback")
            return self.revision
        with suppress(sqlite3.Error):
            self._connection.close()
        with suppress(Invalid, Unavailable, sqlite3.Error):
            self._connection = self._connect()
            return self.revision
        return None

    def close(self) -> None:
        with suppress(sqlite3.Error):
            self._connection.close()
        self._held.close()


def _revision(connection: sqlite3.Connection) -> int:
    row = connection.execute("select value from facts where name = 'revision'").fetchone()
    if row is None:
        raise sqlite3.DatabaseError("its revision is missing")
    return int(row[0])


def _chunks(values: list[str | bytes], width: int) -> Iterator[list[str | bytes]]:
    """The values of so many rows of so many columns, in a few sizes, so that statements are compiled once."""
    start = 0
    for rows in CHUNKS:
        size = rows * width
        while len(values) - start >= size:
            yield values[start : start + size]
            start += size
