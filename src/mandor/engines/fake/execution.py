"""A command inside a fake unit: `echo WORD …`, `complain WORD …`, `env NAME`, `file PATH`, `cat`, `size`, `exit CODE`.

Any other command succeeds without output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mandor.engines.base import Launch
from mandor.engines.fake.mounts import read_file


class FakeExecution:
    def __init__(self, command: Sequence[str], launch: Launch, *, terminal: bool, rows: int, columns: int) -> None:
        self.size = (rows, columns)
        self._command = list(command)
        self._launch = launch
        self._line_end = b"\r\n" if terminal else b"\n"
        self._output: asyncio.Queue[tuple[str, bytes] | None] = asyncio.Queue(maxsize=64)
        self._over = asyncio.Event()
        self._code = 0
        self._run()

    def _run(self) -> None:
        match self._command:
            case ["cat"]:
                return
            case ["echo", *words]:
                self._print(" ".join(words))
            case ["complain", *words]:
                self._print(" ".join(words), "stderr")
            case ["env", name]:
                self._print(self._launch.env.get(name, ""))
            case ["file", path]:
                self._print((read_file(self._launch, path) or "").removesuffix("\n"))
            case ["size"]:
                self._print(f"{self.size[0]} {self.size[1]}")
            case ["exit", code]:
                self._code = int(code)
        self._end()

    def _print(self, text: str, stream: str = "stdout") -> None:
        self._output.put_nowait((stream, text.encode() + self._line_end))

    async def read(self) -> tuple[str, bytes] | None:
        return None if self._over.is_set() and self._output.empty() else await self._output.get()

    async def write(self, data: bytes) -> None:
        if self._over.is_set():
            return
        if data:
            await self._output.put(("stdout", data))
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
