"""The SQLite file of a store: one connection, used by one thread; no threads and no waiting in here."""

import logging
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from mandor.errors import Invalid, Unavailable
from mandor.lib.lock import LockHeld, hold
from mandor.model.codec import KINDS, decode
from mandor.model.meta import Object
from mandor.store.base import KeyTuple
from mandor.store.draft import share

log = logging.getLogger(__name__)

APPLICATION_ID = 0x4D4E4452  # "MNDR", at a fixed offset of the file: identifies files of mandor
FORMAT = 2
"""Format 2: rows end with a checksum, see `with_sum`; rows of format 1 have none and are read as they are."""
SCHEMA = """
create table objects (key text primary key, data blob not null) without rowid;
insert into objects values ('', '0');
"""
REVISION = ""
"""Key of the row that holds the store's revision."""
ROWS = (2, 8, 32, 128, 512, 2048)
"""Rows per statement: a few sizes, so that each statement is compiled once. Python acquires its global lock
again after every statement, and waits for it while the event loop is busy: a transaction of one
large statement lets the two run in parallel."""


def row_key(uid: str, key: KeyTuple) -> str:
    """Return the key of a row. It starts with the uid, which grows with time, so that new rows share pages."""
    return f"{uid}/{key[0]}/{key[1]}/{key[2]}"


def with_sum(key: str, data: bytes) -> bytes:
    """Return a row's content: the object, and a checksum over the row's key and the object."""
    return b"%b\n%08x" % (data, zlib.crc32(data, zlib.crc32(key.encode())))


def content_of(key: object, row: object) -> bytes:
    """Return the object of a row without its checksum; raise `Invalid` if the checksum does not match."""
    if not isinstance(key, str) or not isinstance(row, bytes):
        raise Invalid("the row has an unexpected type")
    if row.endswith(b"}"):
        return row  # written by format 1
    data, _, found = row.rpartition(b"\n")
    if found != b"%08x" % zlib.crc32(data, zlib.crc32(key.encode())):
        raise Invalid("the checksum does not match")
    return data


_PUT = {size: "insert or replace into objects values " + ",".join(["(?,?)"] * size) for size in ROWS}  # noqa: S608
_DELETE = {size: f"delete from objects where key in ({','.join('?' * size)})" for size in ROWS}  # noqa: S608


class StateFile:
    """The constructor opens the file; it refuses files that are foreign, damaged, newer, or in use."""

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
        except LockHeld as error:
            raise Unavailable(
                f"{self.path} is in use by process {error.holder or '?'}",
                hint="a store in a file belongs to one server; stop the other one, or use etcd for several servers",
            ) from error
        except OSError as error:
            raise Unavailable(
                f"cannot use {self.path}: {error.strerror}", hint="check the folder's permissions"
            ) from error

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
        """Create the file, readable by this user only: it holds credentials of the cluster."""
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise Unavailable(
                f"cannot use {self.path}: {error.strerror}", hint="check the file's permissions"
            ) from error

    def _check(self, connection: sqlite3.Connection) -> None:
        (owner,) = connection.execute("pragma application_id").fetchone()
        (version,) = connection.execute("pragma user_version").fetchone()
        (tables,) = connection.execute("select count(*) from sqlite_master").fetchone()
        if owner != APPLICATION_ID and (owner or version or tables):
            raise Invalid(f"{self.path} is a database of another program", hint="name another file")
        if version > FORMAT:
            raise Invalid(
                f"{self.path} was written by a newer mandor (format {version}; this one supports {FORMAT})",
                hint="upgrade mandor",
            )

    @staticmethod
    def _prepare(connection: sqlite3.Connection) -> None:
        # Exclusive: no other program can access the file, so the write-ahead log has exactly one user,
        # and its index is kept in memory. FULL: a commit is on the disk when it returns.
        connection.execute("pragma locking_mode=exclusive")
        connection.execute("pragma journal_mode=wal")
        connection.execute("pragma synchronous=full")
        connection.execute("pragma cache_size=-4096")
        connection.execute("pragma wal_autocheckpoint=4000")
        connection.execute("pragma journal_size_limit=67108864")
        (owner,) = connection.execute("pragma application_id").fetchone()
        if owner != APPLICATION_ID:
            connection.executescript(
                f"begin; {SCHEMA} pragma application_id={APPLICATION_ID}; pragma user_version={FORMAT}; commit;"
            )
        elif connection.execute("pragma user_version").fetchone() != (FORMAT,):
            connection.execute(f"pragma user_version={FORMAT}")

    def _refused(self, error: sqlite3.Error) -> Invalid | Unavailable:
        message = f"cannot use {self.path}: {error}"
        if isinstance(error, sqlite3.OperationalError):
            return Unavailable(message, hint="check the disk, its free space and the file's permissions")
        return Invalid(message, hint="it is damaged or not a database: `mandor recover` shows what can be recovered")

    # Reading at start.

    @property
    def revision(self) -> int:
        return _revision(self._connection)

    def read(self) -> Iterator[Object]:
        """Yield every object; raise `Invalid` for one that cannot be read, log a warning for unknown kinds."""
        unknown: dict[str, int] = {}
        try:
            for key, data in self._connection.execute("select key, data from objects where key > ''"):
                try:
                    data = content_of(key, data)
                except Invalid as error:
                    raise Invalid(
                        f"{self.path} is damaged at {key}: {error}", hint="`mandor recover` shows what can be recovered"
                    ) from error
                kind = key.split("/")[1]
                if kind not in KINDS:
                    unknown[kind] = unknown.get(kind, 0) + 1
                    continue
                try:
                    found = decode(data)
                except Invalid as error:
                    raise Invalid(
                        f"{self.path} holds {key}, which this version of mandor cannot read: {error}",
                        hint="a newer version of mandor may have written it: upgrade this one, or restore a backup",
                    ) from error
                share(found.meta)
                yield found
        except sqlite3.Error as error:
            raise self._refused(error) from error
        for kind, count in sorted(unknown.items()):
            log.warning("%s holds %d objects of the unknown kind %s; they are ignored", self.path, count, kind)

    # Writing.

    def write(self, puts: list[str | bytes], gone: Sequence[str], revision: int) -> None:
        """Store rows (key, data, key, data …), delete others and update the revision, all in one transaction.

        Raise `Unavailable` if the transaction failed.
        """
        try:
            self._write(puts, gone, revision)
        except sqlite3.Error as error:
            if self._recover() == revision:
                return  # SQLite reported an error, but the transaction is stored.
            raise Unavailable(
                f"cannot write {self.path}: {error}",
                hint="check whether the disk is full; commits succeed again as soon as there is space",
            ) from error

    def _write(self, puts: list[str | bytes], gone: Sequence[str], revision: int) -> None:
        puts = [*puts, REVISION, b"%d" % revision]
        if not gone and len(puts) <= 2 * ROWS[-1]:
            self._put(puts)  # a transaction of its own
            return
        self._connection.execute("begin immediate")
        for start in range(0, len(puts), 2 * ROWS[-1]):
            self._put(puts[start : start + 2 * ROWS[-1]])
        for start in range(0, len(gone), ROWS[-1]):
            self._delete(gone[start : start + ROWS[-1]])
        self._connection.execute("commit")

    def _put(self, puts: list[str | bytes]) -> None:
        size = next(size for size in ROWS if 2 * size >= len(puts))
        puts += puts[-2:] * (size - len(puts) // 2)  # repeat the last row to fill the statement
        self._connection.execute(_PUT[size], puts)

    def _delete(self, gone: Sequence[str]) -> None:
        size = next(size for size in ROWS if size >= len(gone))
        self._connection.execute(_DELETE[size], [*gone, *[gone[-1]] * (size - len(gone))])

    def _recover(self) -> int | None:
        """Return the stored revision after an error; reconnect if the connection does not answer."""
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
    row = connection.execute("select data from objects where key = ?", (REVISION,)).fetchone()
    if row is None:
        raise sqlite3.DatabaseError("the revision is missing")
    return int(row[0])
