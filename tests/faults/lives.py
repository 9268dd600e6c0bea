"""Start and end of each unit as recorded by its engine or the machine, independent of agents."""

from __future__ import annotations

import os
import select
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import msgspec

from mandor.engines.base import Unit
from mandor.engines.fake.state import FileState, Record
from tests.faults.history import Life

EVERY_SECONDS = 0.2

_DIARY = """
CREATE TABLE IF NOT EXISTS diary (what TEXT, record BLOB, day REAL);
CREATE TRIGGER IF NOT EXISTS begins AFTER INSERT ON records
  BEGIN INSERT INTO diary VALUES ('begins', NEW.record, julianday('now')); END;
CREATE TRIGGER IF NOT EXISTS changes AFTER UPDATE ON records
  BEGIN INSERT INTO diary VALUES ('changes', NEW.record, julianday('now')); END;
CREATE TRIGGER IF NOT EXISTS goes AFTER DELETE ON records
  BEGIN INSERT INTO diary VALUES ('goes', OLD.record, julianday('now')); END;
"""
_EPOCH_DAY = 2440587.5


def keep_diary(folder: Path) -> None:
    """Log all changes of a fake engine's state to a file beside its folder."""
    FileState(folder).close()
    with closing(sqlite3.connect(folder / "world.db", isolation_level=None)) as world:
        world.executescript(_DIARY)


def read_diary(node: str, folder: Path) -> list[Life]:
    with closing(sqlite3.connect(folder / "world.db", timeout=60)) as world:
        rows = world.execute("SELECT what, record, day FROM diary ORDER BY rowid").fetchall()
    now, ahead = time.monotonic(), time.time() - time.monotonic()
    over: list[Life] = []
    going: dict[Unit, Life] = {}
    for what, data, day in rows:
        record = msgspec.json.decode(data, type=Record)
        ended = record.ends_at if record.ends_at is not None and record.ends_at <= now else None
        if what == "goes":
            # SQLite truncates its clock to milliseconds, so a short life would end before it began.
            at = max(record.begun_at, (day - _EPOCH_DAY) * 86400 - ahead)
            ended = at if ended is None else min(ended, at)
        name = record.launch.name.partition("/")[0]
        life = Life(node, *record.unit, name=name, begun=record.begun_at, ended=ended)
        if what == "begins" and record.unit in going:
            over.append(going[record.unit])
        going[record.unit] = life
        if what == "goes":
            over.append(going.pop(record.unit))
    return [*over, *going.values()]


class Roll:
    """Real processes: each calls its name when it begins, and is looked at until it is gone."""

    def __init__(self, file: Path) -> None:
        file.touch()
        self._file = file
        self._ahead = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
        self._read = 0
        self._over: list[Life] = []
        self._going: dict[int, tuple[Life, float]] = {}
        """By the descriptor of the process; and when it was last seen."""
        self._poll = select.poll()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, name="roll")
        self._thread.start()

    @property
    def command(self) -> str:
        """Return the shell command that records the start of a process."""
        who = "$MANDOR_NODE $MANDOR_INSTANCE $MANDOR_UNIT $$ $up"
        return f'read up rest < /proc/uptime; echo "{who}" >> {self._file}; exec sleep 100000'

    def _look(self) -> None:
        while not self._end.wait(EVERY_SECONDS):
            self.look()

    def look(self) -> None:
        now = time.monotonic()
        with self._file.open() as file:
            file.seek(self._read)
            while (line := file.readline()).endswith("\n"):
                self._read = file.tell()
                self._begin(line.split(), now)
        gone = {descriptor for descriptor, _ in self._poll.poll(0)}
        for descriptor, (life, seen) in list(self._going.items()):
            if descriptor not in gone:
                self._going[descriptor] = (life, now)
                continue
            self._over.append(Life(life.node, life.uid, life.task, life.attempt, life.name, life.begun, seen))
            del self._going[descriptor]
            self._poll.unregister(descriptor)
            os.close(descriptor)

    def _begin(self, words: list[str], now: float) -> None:
        node, name, unit, pid, up = words
        uid, task, attempt = unit.split(".")
        begun = float(up) - self._ahead
        try:
            descriptor = os.pidfd_open(int(pid))
        except ProcessLookupError:
            self._over.append(Life(node, uid, task, int(attempt), name, begun, begun))
            return
        self._poll.register(descriptor, select.POLLIN)
        self._going[descriptor] = (Life(node, uid, task, int(attempt), name, begun, None), now)

    def lives(self) -> list[Life]:
        """Stop observing and return all recorded lifetimes."""
        self._end.set()
        self._thread.join()
        self.look()
        found = [*self._over, *(life for life, _ in self._going.values())]
        for descriptor in self._going:
            os.close(descriptor)
        self._going.clear()
        return found
