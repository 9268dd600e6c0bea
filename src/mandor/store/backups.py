"""Scheduled backups in a folder, of which the newest are kept."""

import asyncio
import calendar
import logging
import os
import re
import time
from pathlib import Path
from typing import BinaryIO

from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.store.base import Store
from mandor.store.dump import count_objects, write_dump

log = logging.getLogger("mandor.backups")

AGAIN_SECONDS = 60.0
"""Seconds until the next attempt after a failed backup."""
_NAME = re.compile(r"mandor-\d{8}T\d{6}Z\.backup")
_STAMP = "mandor-%Y%m%dT%H%M%SZ.backup"


def name_at(now: float) -> str:
    return time.strftime(_STAMP, time.gmtime(now))


def made_at(name: str) -> float:
    return float(calendar.timegm(time.strptime(name, _STAMP)))


class Backups:
    """Makes a backup every `every_seconds`, also across restarts, and then deletes the oldest."""

    def __init__(self, store: Store, clock: Clock, folder: Path, *, every_seconds: float, keep: int) -> None:
        self._store, self._clock, self._folder = store, clock, folder
        self._every_seconds, self._keep = every_seconds, keep
        self.trouble = ""
        """Reason why the last backup failed; empty: it succeeded."""

    async def run(self) -> None:
        while True:
            try:
                await self._clock.sleep(await asyncio.to_thread(self._wait))
                await self.make()
                self.trouble = ""
            except (OSError, MandorError) as error:
                self.trouble = f"cannot write a backup to {self._folder}: {error}"
                log.error("%s", self.trouble)
                await self._clock.sleep(min(AGAIN_SECONDS, self._every_seconds))

    def _wait(self) -> float:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        now = self._clock.now()
        # A backup with a time in the future was made with a wrong clock.
        times = [at for at in map(made_at, self._names()) if at <= now]
        return max(0.0, times[-1] + self._every_seconds - now) if times else 0.0

    def _names(self) -> list[str]:
        """Return the names of the backups, oldest first; other files are ignored."""
        return sorted(each.name for each in self._folder.iterdir() if _NAME.fullmatch(each.name))

    async def make(self) -> Path:
        target = self._folder / name_at(self._clock.now())
        part = target.with_name(f".{target.name}.part")
        try:
            # Opened here and not in a thread: a cancelled caller would leave the file open.
            with _open(part) as file:
                await write_dump(self._store, file)
                await asyncio.to_thread(_settle, file)
            objects = await asyncio.to_thread(count_objects, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        log.info("saved %d objects in %s", objects, target)
        for name in self._names()[: -self._keep]:
            (self._folder / name).unlink(missing_ok=True)
        return target


def newest_good(folder: Path) -> Path | None:
    """Return the newest backup that can be read completely; None if there is none."""
    names = sorted((each.name for each in folder.glob("mandor-*.backup") if _NAME.fullmatch(each.name)), reverse=True)
    for name in names:
        try:
            count_objects(folder / name)
        except (MandorError, OSError) as error:
            log.warning("ignored the backup %s: %s", folder / name, error)
        else:
            return folder / name
    return None


def _open(path: Path) -> BinaryIO:
    """Create the file, readable by this user only: it contains every object of the cluster."""
    return open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600))


def _settle(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
