"""A command that runs inside the instance of a task."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec

from mandor.engines.containers.output import Output
from mandor.engines.incus.client import IncusClient, Refused
from mandor.errors import EngineDown

KILLED = 137
_KILL = 9


async def begin(api: IncusClient, operation: dict[str, Any], *, terminal: bool) -> IncusExecution:
    """Start the command. `operation`: the answer of Incus to an exec that waits for its web sockets."""
    path, secrets = operation["operation"], operation["metadata"]["fds"]
    sockets = {}
    for name in sorted(secrets, reverse=True):  # The command starts, and may end, when 0, 1 and 2 are connected.
        # An answer to a ping on a connection that Incus has closed would lose its last data.
        sockets[name] = await api.connect(f"{path}/websocket", pongs=False, secret=secrets[name])
    return IncusExecution(api, path, sockets, terminal=terminal)


class IncusExecution:
    def __init__(
        self,
        api: IncusClient,
        operation: str,
        sockets: dict[str, aiohttp.ClientWebSocketResponse],
        *,
        terminal: bool,
    ) -> None:
        self._api, self._operation, self._sockets = api, operation, sockets
        self._output = Output()
        outputs = {"0": "stdout"} if terminal else {"1": "stdout", "2": "stderr"}
        self._closed = False
        self._reading = asyncio.create_task(self._read_all(outputs))
        self._waiting = asyncio.create_task(self._wait())
        self._watching = asyncio.create_task(self._answer_control())

    async def read(self) -> tuple[str, bytes] | None:
        return await self._output.read()

    async def write(self, data: bytes) -> None:
        socket = self._sockets["0"]
        if self._closed or socket.closed:
            return
        try:
            if data:
                await socket.send_bytes(data)
            else:
                await socket.send_str("")
                await socket.close()
        except (ConnectionError, aiohttp.ClientError):
            return  # The command has ended.

    async def resize(self, rows: int, columns: int) -> None:
        await self._control({"command": "window-resize", "args": {"width": str(columns), "height": str(rows)}})

    async def wait(self) -> int:
        return await asyncio.shield(self._waiting)

    async def close(self) -> None:
        if self._closed:
            return
        if not self._waiting.done():
            await self._control({"command": "signal", "signal": _KILL})
        self._closed = True
        self._reading.cancel()
        self._watching.cancel()
        await asyncio.gather(self._reading, self._watching, return_exceptions=True)
        self._output.drop()
        for socket in self._sockets.values():
            await socket.close()
        await asyncio.wait({self._waiting}, timeout=5)

    async def _control(self, order: dict[str, Any]) -> None:
        socket = self._sockets.get("control")
        if socket is not None and not socket.closed:
            try:
                await socket.send_bytes(msgspec.json.encode(order))
            except (ConnectionError, aiohttp.ClientError):
                return

    async def _answer_control(self) -> None:
        """Read the control connection, so that its end is noticed."""
        socket = self._sockets.get("control")
        if socket is not None:
            async for _ in socket:
                pass

    async def _read_all(self, outputs: dict[str, str]) -> None:
        await asyncio.gather(*(self._read_one(self._sockets[name], stream) for name, stream in outputs.items()))
        for socket in self._sockets.values():  # Incus waits for this before it reports the exit code.
            await socket.close()
        await self._output.end()

    async def _read_one(self, socket: aiohttp.ClientWebSocketResponse, stream: str) -> None:
        async for message in socket:
            if message.type is aiohttp.WSMsgType.TEXT:  # An empty message ends a stream.
                break
            if message.type is aiohttp.WSMsgType.BINARY and message.data:
                await self._output.put(stream, message.data)

    async def _wait(self) -> int:
        try:
            found = await self._api.finish({"operation": self._operation})
        except (Refused, EngineDown):
            return KILLED
        code = int(found.get("return", KILLED))
        return code if code >= 0 else KILLED
