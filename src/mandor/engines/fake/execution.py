"""A command inside a fake unit: `echo WORD …`, `cat`, `exit CODE`; any other succeeds in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence


class FakeExecution:
    def __init__(self, command: Sequence[str], *, terminal: bool, rows: int, columns: int) -> None:
        self.size = (rows, columns)
        self._command = list(command)
        self._line_end = b"\r\n" if terminal else b"\n"
        self._output: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=64)
        self._over = asyncio.Event()
        self._code = 0
        self._run()

    def _run(self) -> None:
        match self._command:
            case ["cat"]:
                return
            case ["echo", *words]:
                self._output.put_nowait(" ".join(words).encode() + self._line_end)
            case ["size"]:
                self._output.put_nowait(f"{self.size[0]} {self.size[1]}".encode() + self._line_end)
            case ["exit", code]:
                self._code = int(code)
        self._end()

    async def read(self) -> tuple[str, bytes] | None:
        data = None if self._over.is_set() and self._output.empty() else await self._output.get()
        return None if data is None else ("stdout", data)

    async def write(self, data: bytes) -> None:
        if self._over.is_set():
            return
        if data:
            await self._output.put(data)
        else:
            self._end()

    async def resize(self, rows: int, columns: int) -> None:
        self.size = (rows, columns)

    async def wait(self) -> int:
        await self._over.wait()
        return self._code

    async def close(self) -> None:
        if not self._over.is_set():
            self._code = 137
            self._end()

    def _end(self) -> None:
        self._over.set()
        if not self._output.full():
            self._output.put_nowait(None)
