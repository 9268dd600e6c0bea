"""Record of the images that an engine pulled for tasks, with the time of their last use: these may be removed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import DecodeError, json

FRESH_SECONDS = 3600.0
"""Seconds between two recorded uses of an image."""


class PulledImages:
    """Kept in a file of the engine, which survives restarts of the agent. Without the file no image is removed."""

    def __init__(self, file: Path, now: Callable[[], float] = time.time) -> None:
        self._file, self._now = file, now
        self._used: dict[str, float] | None = None

    def add(self, name: str) -> None:
        self._known()[name] = self._now()
        self._write()

    def use(self, name: str) -> None:
        """Record the use of an image, if it was pulled for a task."""
        known = self._known()
        if name in known:
            stale = self._now() - known[name] > FRESH_SECONDS
            known[name] = self._now()
            if stale:
                self._write()

    def __contains__(self, name: str) -> bool:
        return name in self._known()

    def forget(self, *names: str) -> None:
        known = self._known()
        if [name for name in names if known.pop(name, None) is not None]:
            self._write()

    def oldest(self) -> list[str]:
        """Return the images, the least recently used first."""
        known = self._known()
        return sorted(known, key=lambda name: known[name])

    def _known(self) -> dict[str, float]:
        if self._used is None:
            try:
                self._used = json.decode(self._file.read_bytes(), type=dict[str, float])
            except (OSError, DecodeError):
                self._used = {}
        return self._used

    def _write(self) -> None:
        self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._file.with_suffix(".new")
        draft.write_bytes(json.encode(self._known()))
        os.replace(draft, self._file)
