"""Records of units that can never start: they have no container, so each has a small file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct, json

from mandor.engines.base import Observed, Unit, UnitPhase

MESSAGE_MOST = 1000


class Failure(Struct, frozen=True):
    uid: str
    task: str
    attempt: int
    message: str
    at: float


class Failures:
    """One file per unit in a folder of the engine; it survives restarts of the agent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, unit: Unit, message: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        record = Failure(unit.uid, unit.task, unit.attempt, message[:MESSAGE_MOST], time.time())
        draft = self._folder / f".{unit}.new"
        draft.write_bytes(json.encode(record))
        os.replace(draft, self._path(unit))

    def knows(self, unit: Unit) -> bool:
        return self._path(unit).exists()

    def forget(self, unit: Unit) -> None:
        self._path(unit).unlink(missing_ok=True)

    def list(self) -> Iterator[Observed]:
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):
            if path.name.startswith("."):
                continue
            record = json.decode(path.read_bytes(), type=Failure)
            yield Observed(
                unit=Unit(record.uid, record.task, record.attempt),
                phase=UnitPhase.EXITED,
                reason="StartFailed",
                message=record.message,
                finished_at=record.at,
            )

    def _path(self, unit: Unit) -> Path:
        return self._folder / str(unit)
