"""The relay process: `python -m mandor.network.relay.server FOLDER`."""

import asyncio
import resource
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from mandor.network.base import FrontendKey
from mandor.network.detached import Answer, serve_detached, write_file
from mandor.network.relay.load import Limit
from mandor.network.relay.message import Entry, Reply, Request
from mandor.network.relay.service import Service

TABLE = "table.json"
CONNECTIONS_MOST = 20_000  # open connections and UDP flows of the process
RESERVED_FILES = 1_024  # descriptors for listeners and control


class Relay:
    """All services of one process."""

    def __init__(self, folder: Path) -> None:
        _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._file = folder / TABLE
        self._limit = Limit(max(64, min(CONNECTIONS_MOST, (files - RESERVED_FILES) // 2)))
        self._services: dict[FrontendKey, Service] = {}
        self._problems: dict[FrontendKey, str] = {}

    async def restore(self) -> None:
        """Serve the table of an earlier process."""
        with suppress(OSError, msgspec.MsgspecError):
            entries = msgspec.json.decode(self._file.read_bytes(), type=tuple[Entry, ...])
            await self._change(Request(put=entries, whole=True))

    async def answer(self, body: bytes) -> bytes:
        """Carry out a request; the reply is sent when it is in effect."""
        request = msgspec.msgpack.decode(body, type=Request)
        if not request.put and not request.delete and not request.whole:
            traffic = tuple((key, each.traffic) for key, each in self._services.items())
            return msgspec.msgpack.encode(Reply(traffic=traffic))
        await self._change(request)
        data = msgspec.json.encode([each.entry for each in self._services.values()])
        await asyncio.get_running_loop().run_in_executor(None, write_file, self._file, data)
        return msgspec.msgpack.encode(Reply(problems=tuple(self._problems.items())))

    async def _change(self, request: Request) -> None:
        kept = {each.key for each in request.put}
        gone = set(request.delete) | (self._services.keys() - kept if request.whole else set())
        for key in gone:
            self._problems.pop(key, None)
            if (service := self._services.pop(key, None)) is not None:
                service.close()
        for entry in request.put:
            service = self._services.setdefault(entry.key, Service(self._limit))
            if service.entry == entry and entry.key not in self._problems:
                continue
            self._problems.pop(entry.key, None)
            if problem := await service.update(entry):
                self._problems[entry.key] = problem


@asynccontextmanager
async def open_relay(folder: Path) -> AsyncIterator[Answer]:
    """Start the relay with the stored table."""
    relay = Relay(folder)
    await relay.restore()
    yield relay.answer


if __name__ == "__main__":
    serve_detached(Path(sys.argv[1]), open_relay)
