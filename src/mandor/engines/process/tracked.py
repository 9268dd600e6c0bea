"""Cached state of one unit, refreshed when it may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.engines.process.execution import ProcessExecution
from mandor.engines.process.folder import UnitFolder
from mandor.engines.process.watch import ProcessWatch


class Tracked:
    def __init__(self, unit: Unit, path: Path, memory: Path | None) -> None:
        self.unit = unit
        self.folder = UnitFolder(path, memory)
        self.busy = asyncio.Lock()
        """Held while the unit is started or removed."""
        self.observed: Observed | None = None
        self.stop_by: float | None = None
        self.executions: set[ProcessExecution] = set()
        self._watches: dict[int, ProcessWatch] = {}
        self._holder = 0

    @property
    def in_use(self) -> bool:
        """Whether the unit was started, or is being started or removed; its folder alone does not count."""
        return self.observed is not None or self.busy.locked()

    @property
    def watch(self) -> ProcessWatch | None:
        """Watch on the supervisor while it runs."""
        return self._watches.get(self._holder)

    def attach(self, pid: int, ended: Callable[[Tracked], None]) -> None:
        """Watch a process that is, or may become, its supervisor."""
        self._holder = pid
        if pid in self._watches:
            return

        def gone() -> None:
            self._watches.pop(pid, None)
            ended(self)

        try:
            self._watches[pid] = ProcessWatch(pid, gone)
        except ProcessLookupError:
            return  # It has ended already, which the lock shows.

    def refresh(self, ended: Callable[[Tracked], None]) -> bool:
        """Read the state; return whether the unit has vanished: it was started, and has no supervisor and no exit
        record."""
        while True:
            if self._has_supervisor(ended):
                running = self.folder.read_running()
                self.observed = Observed(
                    unit=self.unit,
                    phase=UnitPhase.RUNNING if running else UnitPhase.STARTING,
                    started_at=running.started_at if running else 0.0,
                    address=running.address if running else "",
                )
                return False
            begun = self.folder.read_running() is not None
            # Checked again after the record was read: a supervisor may have started or ended in between.
            if self.folder.supervisor() is not None:
                continue
            record = self.folder.read_exit()
            self.observed = record.observed(self.unit) if record else None
            return begun and record is None

    def _has_supervisor(self, ended: Callable[[Tracked], None]) -> bool:
        pid = self.folder.supervisor()
        while pid is not None:
            self.attach(pid, ended)
            # Checked again with the pidfd open, so that it is this process and not a later one with the same id.
            again = self.folder.supervisor()
            if again == pid and self.watch is not None:
                return True
            pid = again
        return False

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()
