"""Starts the programs of the `shim` package, detached from the agent."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mandor.engines.process.folder import UnitFolder
from mandor.engines.shim import run
from mandor.engines.shim.supervisor import READY

_PROGRAM = [sys.executable, "-I", "-S", str(Path(run.__file__))]
_EVERY_SIGNAL = signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}


class Ready:
    """The agent's end of a pipe on which a supervisor says that its program runs; it ends if nothing is to be said."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    async def wait(self, seconds: float) -> bool:
        """Whether word, or the end, came in time."""
        loop = asyncio.get_running_loop()
        heard = asyncio.Event()
        loop.add_reader(self._pipe, heard.set)
        try:
            async with asyncio.timeout(seconds):
                await heard.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._pipe)
            os.close(self._pipe)
        return True


def spawn_supervisor(folder: UnitFolder) -> tuple[int, Ready]:
    """A supervisor for the unit in `folder`: in a session of its own, with nothing of the agent's environment."""
    heard, ready = os.pipe()
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_OPEN, 2, str(folder.supervisor_log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, ready, READY),
    ]
    try:
        # SIGTERM waits until the supervisor can take it: an order may come before it is ready.
        return _spawn([str(folder.path)], actions, blocked=[signal.SIGTERM]), Ready(heard)
    except OSError:
        os.close(heard)
        raise
    finally:
        os.close(ready)


def spawn_inside(folder: Path, supervisor: int, command: Sequence[str], ends: tuple[int, int, int]) -> int:
    """A command beside the task of that supervisor, with these standard input, output and error."""
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends)]
    return _spawn([str(folder), str(supervisor), *command], actions)


@cache
def mounts_possible() -> bool:
    """Whether tasks can have mounts of their own: root's can, unless something forbids it; tried once."""
    if os.geteuid() != 0:
        return False
    return _try("mounts")


@cache
def view_possible() -> bool:
    """Whether tasks can have namespaces of their own: root's can, others' where user namespaces are allowed; tried
    once."""
    return _try("view")


def _try(what: str) -> bool:
    pid = _spawn([what], [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_RDWR, 0)])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _spawn(arguments: Sequence[str], actions: Sequence[tuple[Any, ...]], blocked: Sequence[int] = ()) -> int:
    return os.posix_spawn(
        _PROGRAM[0],
        [*_PROGRAM, *arguments],
        {},
        file_actions=actions,
        setsid=True,
        setsigmask=blocked,
        setsigdef=_EVERY_SIGNAL,
    )
