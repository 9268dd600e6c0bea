"""State of fake units: in memory, or in a file that outlives the agent, as real units do.

Every start is recorded, so that tests can check that none happened twice.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mandor.engines.base import Launch, Observed, Unit, UnitPhase


class Record(Struct, frozen=True, kw_only=True):
    """One fake unit with the planned times of its changes, from which its state at any time follows.

    Times are those of the monotonic clock, so that changes of the wall clock have no effect.
    """

    unit: Unit
    launch: Launch
    begun_at: float
    runs_at: float
    ends_at: float | None = None
    wall: float = 0.0
    """Difference of the wall clock to the monotonic clock at the start, for reported times."""
    code: int | None = None
    reason: str = ""
    message: str = ""
    signals: tuple[tuple[float, str], ...] = ()
    """Received signals, each with its time."""

    def observed(self, now: float) -> Observed:
        if self.ends_at is not None and now >= self.ends_at:
            return Observed(
                unit=self.unit,
                phase=UnitPhase.EXITED,
                exit_code=self.code,
                reason=self.reason,
                message=self.message,
                started_at=self.wall_time(self.runs_at) if self._ran(self.ends_at) else 0.0,
                finished_at=self.wall_time(self.ends_at),
            )
        if now < self.begun_at:
            return Observed(
                unit=self.unit,
                phase=UnitPhase.EXITED,
                reason="Vanished",
                message="the node was restarted",
                started_at=self.wall_time(self.runs_at),
                finished_at=self.wall_time(self.runs_at),
            )
        if now < self.runs_at:
            return Observed(unit=self.unit, phase=UnitPhase.STARTING)
        return Observed(unit=self.unit, phase=UnitPhase.RUNNING, started_at=self.wall_time(self.runs_at))

    def wall_time(self, at: float) -> float:
        """Convert a monotonic time to wall clock time."""
        return at + self.wall

    def _ran(self, until: float) -> bool:
        return self.runs_at <= until and self.reason != "StartFailed"

    def next_change(self, now: float) -> float | None:
        """Return the time of its next change; None: there is none."""
        ahead = [at for at in (self.runs_at, self.ends_at) if at is not None and at > now]
        return min(ahead, default=None)

    def ending(self, at: float, code: int | None, reason: str, message: str = "") -> Record:
        """Return the record with this end, unless it ends earlier."""
        if self.ends_at is not None and self.ends_at <= at:
            return self
        return replace(self, ends_at=at, code=code, reason=reason, message=message)


class Start(NamedTuple):
    unit: Unit
    at: float
    pid: int
    """Process id of the agent."""


class FakeState(Protocol):
    def get(self, unit: Unit) -> Record | None: ...

    def all(self) -> Sequence[Record]: ...

    def begin(self, record: Record) -> bool:
        """Add a record and count a start, in one step; False: the unit exists already."""

    def put(self, record: Record) -> None:
        """Replace a record; do nothing if it was deleted."""

    def delete(self, unit: Unit) -> None: ...

    def starts(self) -> Sequence[Start]: ...


class MemoryState:
    """State in memory; several engines may share one, as several agents share a node."""

    def __init__(self) -> None:
        self._records: dict[Unit, Record] = {}
        self._starts: list[Start] = []

    def get(self, unit: Unit) -> Record | None:
        return self._records.get(unit)

    def all(self) -> Sequence[Record]:
        return list(self._records.values())

    def begin(self, record: Record) -> bool:
        if record.unit in self._records:
            return False
        self._records[record.unit] = record
        self._starts.append(Start(record.unit, record.begun_at + record.wall, os.getpid()))
        return True

    def put(self, record: Record) -> None:
        if record.unit in self._records:
            self._records[record.unit] = record

    def delete(self, unit: Unit) -> None:
        self._records.pop(unit, None)

    def starts(self) -> Sequence[Start]:
        return list(self._starts)


class FileState:
    """State in `world.db` of a folder; each step is one transaction, so that a killed agent leaves no half of one."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(directory / "world.db", isolation_level=None, timeout=60, check_same_thread=False)
        # It has to survive the agent, not the node: no sync to disk is needed.
        self._db.execute("PRAGMA synchronous = OFF")
        self._db.execute("CREATE TABLE IF NOT EXISTS records (unit TEXT PRIMARY KEY, record BLOB NOT NULL)")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS starts (uid TEXT, task TEXT, attempt INTEGER, at REAL, pid INTEGER)"
        )

    def get(self, unit: Unit) -> Record | None:
        row = self._db.execute("SELECT record FROM records WHERE unit = ?", (str(unit),)).fetchone()
        return _decode(row[0]) if row else None

    def all(self) -> Sequence[Record]:
        return [_decode(row[0]) for row in self._db.execute("SELECT record FROM records ORDER BY unit")]

    def begin(self, record: Record) -> bool:
        values = (str(record.unit), msgspec.json.encode(record))
        self._db.execute("BEGIN IMMEDIATE")
        try:
            new = self._db.execute("INSERT OR IGNORE INTO records VALUES (?, ?)", values).rowcount == 1
            if new:
                start = (*record.unit, record.begun_at + record.wall, os.getpid())
                self._db.execute("INSERT INTO starts VALUES (?, ?, ?, ?, ?)", start)
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")
        return new

    def put(self, record: Record) -> None:
        values = (msgspec.json.encode(record), str(record.unit))
        self._db.execute("UPDATE records SET record = ? WHERE unit = ?", values)

    def delete(self, unit: Unit) -> None:
        self._db.execute("DELETE FROM records WHERE unit = ?", (str(unit),))

    def starts(self) -> Sequence[Start]:
        rows = self._db.execute("SELECT uid, task, attempt, at, pid FROM starts ORDER BY rowid")
        return [Start(Unit(uid, task, attempt), at, pid) for uid, task, attempt, at, pid in rows]

    def close(self) -> None:
        self._db.close()


def _decode(data: bytes) -> Record:
    return msgspec.json.decode(data, type=Record)
