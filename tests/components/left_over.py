"""Finds processes that this test run started and did not end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MARK = "MANDOR_TEST_RUN"
"""Set in the environment of everything a test run starts."""

GRACE_SECONDS = 10.0


@dataclass(frozen=True)
class LeftOver:
    """A process nobody ended, and the test that started it."""

    pid: int
    command: str
    test: str

    def __str__(self) -> str:
        return f"pid {self.pid}: {self.command[:200]} (started by {self.test or 'a test that is not known'})"


def mark_run() -> str:
    """Mark this process's children, whoever they become children of later; the mark is new for each process."""
    os.environ[MARK] = mark = f"{os.getpid()}-{uuid.uuid4().hex}"
    return mark


def find_left_over(mark: str, folder: Path, *, parent: int | None = None) -> list[LeftOver]:
    """Processes of the run: descendants of `parent` (of this process, if not given), bearers of its mark,
    and those whose work is inside its folder."""
    own = {child.pid for child in psutil.Process(parent).children(recursive=True)}
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            environ = _environ(process)
            command = " ".join(process.cmdline())
            if "multiprocessing.resource_tracker" in command:  # ends with its parent, and no sooner
                continue
        except psutil.Error:
            continue
        inside = f"{folder}/" in f"{command} {_cwd(process)}/"
        if process.pid in own or environ.get(MARK) == mark or inside:
            found.append(LeftOver(process.pid, command, environ.get("PYTEST_CURRENT_TEST", "")))
    return found


def end_left_over(mark: str, folder: Path, *, parent: int | None = None) -> Sequence[LeftOver]:
    """Give the last processes a moment, then end those that stay; what had to be ended."""
    deadline = time.monotonic() + GRACE_SECONDS
    while (left := find_left_over(mark, folder, parent=parent)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for each in left:
        try:
            psutil.Process(each.pid).kill()
        except psutil.Error:
            continue
    return left


def _environ(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _cwd(process: psutil.Process) -> str:
    try:
        return process.cwd()
    except psutil.Error:
        return ""
