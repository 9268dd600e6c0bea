"""The agent's side of the name server: starts the process, sends tables, restarts the process if it ends."""

import asyncio
import logging
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from mandor.errors import Unavailable
from mandor.network.base import Names, NameTable
from mandor.network.detached import Detached
from mandor.network.dns.wire import Listen, Reply, Request, Table

RESTART_SECONDS = 1.0  # between attempts to start a process that ended
log = logging.getLogger(__name__)


class NameServerProcess(Names):
    """Controls the name server process of one folder."""

    def __init__(
        self,
        folder: Path,
        addresses: Sequence[str],
        *,
        port: int = 53,
        upstream: Sequence[tuple[str, int]] = (),
        add: bool = True,
    ) -> None:
        """
        `addresses`: candidates in order of preference.
        `upstream`: servers for other names; empty: those of the machine.
        `add`: whether the process adds its address to the loopback interface.
        """
        self._folder = folder
        self._listen = Listen(tuple(addresses), port, tuple(upstream), add)
        self._process = Detached("mandor.network.dns.server", folder)
        self._lock = asyncio.Lock()
        self._table: NameTable | None = None
        """Table in effect; None: not known."""
        self._watch: asyncio.Task[None] | None = None
        self.port = 0
        """Port of the server, after `open`."""

    async def open(self) -> str:
        """Start the process, if it does not run, with the table on disk."""
        async with self._lock:
            reply = await self._send(Request(listen=self._listen))
            self.port = reply.port
            if self._watch is None:
                self._watch = asyncio.create_task(self._keep_running(), name="name server process")
            return reply.address

    async def apply(self, table: NameTable) -> None:
        """Send the whole table."""
        async with self._lock:
            self._table = None
            await self._send(Request(self._listen, Table.of(table)))
            self._table = table

    async def _send(self, request: Request) -> Reply:
        answer = await self._process.call(msgspec.msgpack.encode(request))
        return msgspec.msgpack.decode(answer, type=Reply)

    async def _keep_running(self) -> None:
        while True:
            await self._process.ended()
            try:
                if self._table is not None:
                    log.warning("the connection to the name server process ended and is opened again")
                    await self.apply(self._table)
                else:
                    await self.open()
            except Unavailable as error:
                log.warning("the name server process does not start: %s", error)
            await asyncio.sleep(RESTART_SECONDS)

    async def close(self) -> None:
        """Close the control connection; the process goes on."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch
            self._watch = None
        async with self._lock:
            self._table = None
            await self._process.close()

    async def remove(self) -> None:
        """End the process and delete its folder."""
        await self.close()
        await self._process.stop()
        await asyncio.get_running_loop().run_in_executor(None, lambda: shutil.rmtree(self._folder, ignore_errors=True))
