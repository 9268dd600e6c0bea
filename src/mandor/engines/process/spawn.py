"""Starts programs of the `shim` package, detached from the agent."""

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
    """Reading end of a pipe: a supervisor writes a byte when its program runs, or closes it."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    async def wait(self, seconds: float) -> bool:
        """Return whether the byte or the end arrived in time."""
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
    """Start a supervisor for the unit in `folder`, in its own session and without the agent's environment."""
    heard, ready = os.pipe()
    actions: list[tuple[Any, ...]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_OPEN, 2, str(folder.supervisor_log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
        (os.POSIX_SPAWN_DUP2, ready, READY),
    ]
    try:
        # SIGTERM is blocked until the supervisor handles it: a stop order may come before.
        return _spawn([str(folder.path)], actions, blocked=[signal.SIGTERM]), Ready(heard)
    except OSError:
        os.close(heard)
        raise
    finally:
        os.close(ready)


def spawn_inside(folder: Path, supervisor: int, command: Sequence[str], ends: tuple[int, int, int]) -> int:
    """Start a command beside the task of a supervisor, with these standard streams."""
    actions = [(os.POSIX_SPAWN_DUP2, end, number) for number, end in enumerate(ends)]
    return _spawn([str(folder), str(supervisor), *command], actions)


@cache
def mounts_possible() -> bool:
    """Return whether tasks can have mounts, by an attempt: usually if the agent is root."""
    if os.geteuid() != 0:
        return False
    return _try("mounts")


@cache
def view_possible() -> bool:
    """Return whether tasks can have namespaces, by an attempt: if the agent is root or user namespaces are allowed."""
    return _try("view")


@cache
def network_possible(ip: str, nft: str, rules: str) -> bool:
    """Return whether tasks can have their own network, by an attempt with these programs and rules."""
    return os.geteuid() == 0 and _try("network", ip, nft, rules)


def _try(*arguments: str) -> bool:
    pid = _spawn(arguments, [(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_RDWR, 0)])
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
