"""Collects the output of running commands into their logs, and reports their ends."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from mandor.engines.base import Unit
from mandor.engines.change_notifier import ChangeNotifier
from mandor.engines.incus.folder import UnitFolder

LOOK_SECONDS = 0.1
LOOK_SECONDS_MOST = 0.8
LOG_BYTES, LOG_FILES = 10 * 1024 * 1024, 3


@dataclass(slots=True)
class _Watched:
    folder: UnitFolder
    size: int
    keep: int
    pause: float = LOOK_SECONDS
    next_at: float = 0.0


class Collector:
    """One asyncio task for all units; units without output are read less often."""

    def __init__(self, notifier: ChangeNotifier) -> None:
        self._notifier = notifier
        self._watched: dict[Unit, _Watched] = {}
        self._hurried = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def __contains__(self, unit: Unit) -> bool:
        return unit in self._watched

    def watch(self, unit: Unit, folder: UnitFolder, limits: str) -> None:
        """Collect the output of a unit until it has ended. `limits`: `BYTES.FILES` of its log."""
        if unit in self._watched or folder.ending() is not None:
            with suppress(OSError):
                if unit not in self._watched:
                    folder.collect(*_limits(limits), over=True)
            return
        self._watched[unit] = _Watched(folder, *_limits(limits))
        if self._working is None or self._working.done():
            self._working = asyncio.create_task(self._work())

    def forget(self, unit: Unit) -> None:
        self._watched.pop(unit, None)

    def hurry(self) -> None:
        """Read all units now."""
        for each in self._watched.values():
            each.pause, each.next_at = LOOK_SECONDS, 0.0
        self._hurried.set()

    def collect(self, unit: Unit) -> None:
        each = self._watched.get(unit)
        if each is not None:
            self._look(unit, each)

    async def close(self) -> None:
        if self._working is not None:
            self._working.cancel()
            await asyncio.gather(self._working, return_exceptions=True)

    async def _work(self) -> None:
        while self._watched:
            now = time.monotonic()
            for unit, each in list(self._watched.items()):
                if each.next_at <= now:
                    self._look(unit, each)
                    await asyncio.sleep(0)
            with suppress(TimeoutError):
                self._hurried.clear()
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._hurried.wait()

    def _look(self, unit: Unit, each: _Watched) -> None:
        try:
            over = each.folder.ending() is not None
            news = each.folder.collect(each.size, each.keep, over=over)
        except OSError:
            over, news = False, False  # The disk is full: the output stays in the folder.
        each.pause = LOOK_SECONDS if news else min(LOOK_SECONDS_MOST, each.pause * 2)
        each.next_at = time.monotonic() + each.pause
        if over:
            self._watched.pop(unit, None)
            self._notifier.notify()


def _limits(text: str) -> tuple[int, int]:
    size, _, keep = text.partition(".")
    return (int(size), int(keep)) if size.isdecimal() and keep.isdecimal() else (LOG_BYTES, LOG_FILES)
