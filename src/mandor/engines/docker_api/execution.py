"""A command that runs inside the container of a task."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from mandor.engines.docker_api.client import ApiClient, Refused
from mandor.engines.docker_api.frames import read_frame
from mandor.engines.docker_api.hijack import Hijacked
from mandor.errors import EngineDown

LOOK_SECONDS = 0.02
LOOK_SECONDS_MOST = 0.5
END_SECONDS = 30.0
KILLED = 137


class ContainerExecution:
    def __init__(
        self, api: ApiClient, identity: str, connection: Hijacked, init: Callable[[], Awaitable[int]], *, terminal: bool
    ) -> None:
        """`init`: returns the process id of the container's first process."""
        self._api, self._id, self._connection, self._init = api, identity, connection, init
        self._terminal = terminal
        self._closed = False

    async def read(self) -> tuple[str, bytes] | None:
        if self._closed:
            return None
        if self._terminal:
            data = await self._connection.read()
            return ("stdout", data) if data else None
        return await read_frame(self._connection.read_exactly)

    async def write(self, data: bytes) -> None:
        if self._closed:
            return
        if data:
            await self._connection.write(data)
        else:
            self._connection.write_eof()

    async def resize(self, rows: int, columns: int) -> None:
        if not self._terminal:
            return
        with suppress(Refused):  # The command may have ended.
            await self._api.post(f"/exec/{self._id}/resize", h=rows, w=columns)

    async def wait(self) -> int:
        pause = LOOK_SECONDS
        while True:
            state = await self._state()
            if state.ended:
                return state.exit_code
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LOOK_SECONDS_MOST)

    async def close(self) -> None:
        """End the command by killing its process: the API has no call for it."""
        if self._closed:
            return
        self._closed = True
        try:
            with suppress(Refused, EngineDown, TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._kill(await self._begun())
        finally:
            await self._connection.close()

    async def _begun(self) -> int:
        """Return the process id; 0: the command has ended. The process starts a moment after the connection."""
        while True:
            state = await self._state()
            if state.ended or state.pid:
                return 0 if state.ended else state.pid
            await asyncio.sleep(LOOK_SECONDS)

    async def _state(self) -> _State:
        try:
            found = await self._api.get(f"/exec/{self._id}/json")
        except Refused as error:
            if error.status == 404:  # The engine forgot it with its container.
                return _State(ended=True, exit_code=KILLED)
            raise
        code = found.get("ExitCode")
        ended = not found.get("Running") and code is not None
        return _State(ended=ended, exit_code=int(code or 0), pid=int(found.get("Pid") or 0))

    async def _kill(self, pid: int) -> None:
        if pid and _same_container(pid, await self._init()):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            await self.wait()


@dataclass(frozen=True, slots=True)
class _State:
    ended: bool
    exit_code: int = 0
    pid: int = 0


def _same_container(pid: int, init: int) -> bool:
    """Return whether both processes are in one container, so that no process of the node with that id is killed."""
    try:
        theirs, container, own = (os.readlink(f"/proc/{each}/ns/pid") for each in (pid, init, "self"))
    except OSError:
        return False
    return theirs == container != own
