"""A command that runs beside the task of a unit, with pipes or a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from mandor.engines.process.spawn import spawn_inside
from mandor.engines.process.watch import ProcessWatch
from mandor.errors import EngineDown, Invalid

READ_BYTES = 64 * 1024
END_OF_INPUT = b"\x04"
"""Control character that ends the input of a terminal (Ctrl-D)."""


class ProcessExecution:
    """Runs a command without buffering: unread output blocks the command."""

    def __init__(
        self, folder: Path, supervisor: int, command: Sequence[str], *, terminal: bool, rows: int, columns: int
    ) -> None:
        self._supervisor = supervisor
        self.closed: Callable[[], None] = lambda: None
        """Callback after the command has ended and its pipes are closed."""
        self._terminal = terminal
        self._loop = asyncio.get_running_loop()
        self._outputs: dict[str, int] = {}
        self._input = -1
        self._waiting: set[asyncio.Event] = set()
        try:
            pid = self._open_terminal(folder, command, rows, columns) if terminal else self._open_pipes(folder, command)
        except OSError as error:
            raise EngineDown(f"cannot run {command[0]}: {error.strerror}") from error
        except ValueError as error:
            raise Invalid(f"{command[0]!r} or one of its arguments is invalid: {error}") from error
        self._watch = ProcessWatch(pid, lambda: None)

    def _open_pipes(self, folder: Path, command: Sequence[str]) -> int:
        stdin, self._input = os.pipe()
        stdout, out_end = os.pipe()
        stderr, err_end = os.pipe()
        self._outputs = {"stdout": stdout, "stderr": stderr}
        for end in (self._input, stdout, stderr):
            os.set_blocking(end, False)
        try:
            return spawn_inside(folder, self._supervisor, command, (stdin, out_end, err_end))
        except (OSError, ValueError):
            self._let_go()
            raise
        finally:
            for end in (stdin, out_end, err_end):
                os.close(end)

    def _open_terminal(self, folder: Path, command: Sequence[str], rows: int, columns: int) -> int:
        ours, theirs = os.openpty()
        self._input = os.dup(ours)
        self._outputs = {"stdout": ours}
        for end in (ours, self._input):
            os.set_blocking(end, False)
        try:
            _set_size(ours, rows, columns)
            return spawn_inside(folder, self._supervisor, command, (theirs, theirs, theirs))
        except (OSError, ValueError):
            self._let_go()
            raise
        finally:
            os.close(theirs)

    async def read(self) -> tuple[str, bytes] | None:
        while self._outputs:
            for stream, end in list(self._outputs.items()):
                try:
                    data = os.read(end, READ_BYTES)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""  # The other end of the terminal is closed.
                if data:
                    return stream, data
                os.close(self._outputs.pop(stream))
            if self._outputs:
                await self._readable()
        return None

    async def _readable(self) -> None:
        ready = asyncio.Event()
        self._waiting.add(ready)
        for end in self._outputs.values():
            self._loop.add_reader(end, ready.set)
        try:
            await ready.wait()
        finally:
            self._waiting.discard(ready)
            for end in self._outputs.values():
                self._loop.remove_reader(end)

    async def write(self, data: bytes) -> None:
        if not data:
            if self._terminal:
                await self._write(END_OF_INPUT)
            else:
                self._close_input()
            return
        await self._write(data)

    async def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left and self._input >= 0:
            try:
                left = left[os.write(self._input, left) :]
            except BlockingIOError:
                await self._writable()
            except OSError:
                self._close_input()  # The command does not read any more.

    async def _writable(self) -> None:
        ready = asyncio.Event()
        self._waiting.add(ready)
        self._loop.add_writer(self._input, ready.set)
        try:
            await ready.wait()
        finally:
            self._waiting.discard(ready)
            if self._input >= 0:
                self._loop.remove_writer(self._input)

    async def resize(self, rows: int, columns: int) -> None:
        if self._terminal and self._input >= 0:
            _set_size(self._input, rows, columns)

    async def wait(self) -> int:
        await self._watch.over.wait()
        return 128 + signal.SIGKILL if self._watch.code is None else self._watch.code

    async def close(self) -> None:
        self.kill()
        await self._watch.over.wait()
        self._let_go()
        self.closed()

    def kill(self) -> None:
        """Kill the command and its process group."""
        if not self._watch.over.is_set():
            # The process id is not reused before the watch has reaped the process.
            with suppress(ProcessLookupError):
                os.killpg(self._watch.pid, signal.SIGKILL)

    def _let_go(self) -> None:
        """Close the pipes; waiting readers and writers wake and see the end."""
        self._close_input()
        for end in self._outputs.values():
            self._loop.remove_reader(end)
            os.close(end)
        self._outputs.clear()
        for waiting in self._waiting:
            waiting.set()

    def _close_input(self) -> None:
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1


def _set_size(end: int, rows: int, columns: int) -> None:
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
