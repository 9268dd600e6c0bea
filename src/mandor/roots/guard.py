"""The guard of a node as a process that outlives the agent, and the agent's control of it."""

import asyncio
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import msgspec

from mandor.agent.fingerprint import boot_id
from mandor.agent.guard import LOOK_SECONDS, Guard
from mandor.agent.journal import Journal
from mandor.engines.base import Engine
from mandor.engines.registry import make_engine
from mandor.engines.shim.light import try_write_kernel
from mandor.errors import Unavailable
from mandor.lib import logs
from mandor.lib.clock import BootClock
from mandor.lib.lock import LockHeld, hold

LOCK = "guard.lock"
READY_SECONDS = 30.0
HAND_OVER_SECONDS = 10.0

log = logging.getLogger(__name__)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a guard process."""

    data: str
    """The agent's data directory."""
    agent: int
    """Process id of the agent; the guard runs as long as the agent lives."""
    engines: Mapping[str, Mapping[str, str]]
    """Settings of the engines that have some."""
    log_style: logs.Style
    log_level: str


class GuardPost:
    """Starts a guard when one is needed; it replaces the guard of an earlier agent."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._guard: subprocess.Popen[bytes] | None = None
        self._busy = asyncio.Lock()

    async def start(self) -> None:
        async with self._busy:
            if self._guard is None or self._guard.poll() is not None:
                self._guard = None
                self._guard = await asyncio.to_thread(_start, self._job)

    async def stop(self) -> None:
        async with self._busy:
            if self._guard is not None:
                self._guard.terminate()
                await asyncio.to_thread(self._guard.wait)
                self._guard = None


def _start(job: Job) -> subprocess.Popen[bytes]:
    """Start the guard and return when it is ready."""
    command = [sys.executable, "-m", "mandor.roots.guard", job.data]
    try:
        guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        raise Unavailable(f"cannot start the guard: {error}") from error
    assert guard.stdin is not None
    assert guard.stdout is not None
    with guard.stdout as word:
        with suppress(BrokenPipeError), guard.stdin as pipe:
            pipe.write(msgspec.json.encode(job))
        ready, _, _ = select.select([word], [], [], READY_SECONDS)
        if ready and word.read(1):
            return guard
    guard.kill()
    guard.wait()
    raise Unavailable("the guard did not start", hint="instances that need a guard wait until it runs")


def dismiss(data: Path) -> None:
    """Stop the guard of an agent's directory, if there is one."""
    deadline = time.monotonic() + HAND_OVER_SECONDS
    while True:
        try:
            with hold(data / LOCK):
                return
        except LockHeld as held:
            if time.monotonic() > deadline:
                raise
            _kill(held, data / LOCK)
            time.sleep(0.02)


def _kill(held: LockHeld, path: Path) -> None:
    with suppress(ValueError, OSError):
        process = os.pidfd_open(int(held.holder))
        try:
            # Checked again with the process held: it is the guard, not a later process with the same id.
            with hold(path):
                return
        except LockHeld as again:
            if again.holder == held.holder:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


@contextmanager
def _replaced(data: Path) -> Iterator[None]:
    while True:
        dismiss(data)
        with suppress(LockHeld), hold(data / LOCK):
            yield
            return


async def _watch(job: Job) -> None:
    data = Path(job.data)

    @cache
    def engine(name: str) -> Engine:
        return make_engine(name, directory=data / "engines" / name, **job.engines.get(name, {}))

    guard = Guard(Journal(data, draft=".guard"), engine, BootClock(), boot_id())
    with _replaced(data):
        os.write(1, b".")
        os.dup2(2, 1)
        while os.getppid() == job.agent or not guard.idle:
            guard.look()
            await asyncio.sleep(LOOK_SECONDS)


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    logs.set_up(job.log_style, job.log_level)
    try_write_kernel("/proc/self/oom_score_adj", "-900")
    asyncio.run(_watch(job))


if __name__ == "__main__":
    main()
