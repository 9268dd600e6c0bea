"""Waits for the end of a process by pidfd, without polling."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path


class ProcessWatch:
    """Holds one process by a pidfd, which, unlike the process id, is never reused for another process."""

    def __init__(self, pid: int, ended: Callable[[], None]) -> None:
        self.pid = pid
        self.over = asyncio.Event()
        self.code: int | None = None
        """Exit code in the convention of shells; None: unknown, because the process is not a child of this one."""
        self._file = os.pidfd_open(pid)
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._file, self._notice)

    def signal(self, number: int) -> None:
        """Send a signal to the process; do nothing if it has ended."""
        if self._file >= 0:
            try:
                signal.pidfd_send_signal(self._file, number)
            except ProcessLookupError:
                return

    def _notice(self) -> None:
        try:
            ended = os.waitid(os.P_PIDFD, self._file, os.WEXITED | os.WNOHANG)
            if ended is not None:
                self.code = ended.si_status + (0 if ended.si_code == os.CLD_EXITED else 128)
        except ChildProcessError:
            pass  # The child of an earlier agent is reaped by init.
        self.close()
        self.over.set()
        self._ended()

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1


def send_signal(pid: int, number: int, *, parent: int) -> bool:
    """Send a signal to a child of `parent`; False: the process has ended, or another one has its number now."""
    try:
        file = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Read while the pidfd holds the process: its parent is that of this very process.
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()
        if int(stat[1]) != parent or stat[0] == b"Z":
            return False
        signal.pidfd_send_signal(file, number)
    except (FileNotFoundError, ProcessLookupError):
        return False
    finally:
        os.close(file)
    return True
