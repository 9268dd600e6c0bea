"""The name server process: `python -m mandor.network.dns.server FOLDER`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec

from mandor.network.base import NameTable
from mandor.network.detached import Answer, serve_detached, write_file
from mandor.network.dns.listener import Listener, open_sockets
from mandor.network.dns.responder import Responder
from mandor.network.dns.upstream import Upstream
from mandor.network.dns.wire import Listen, Reply, Request, State, Table

STATE, TABLE = "state.json", "table.json"


class NameServer:
    """The listener with its table, and the state on disk from which a new process goes on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = NameTable({})
        self._listen: Listen | None = None
        self._listener: Listener | None = None
        self._responder = Responder(Upstream())

    async def restore(self) -> None:
        """Go on as an earlier process did."""
        with suppress(OSError, msgspec.MsgspecError):
            self._table = msgspec.json.decode((self._folder / TABLE).read_bytes(), type=Table).table()
        if (state := self._state()) is not None:
            with suppress(OSError):  # the next request reports the reason
                await self._open(state.listen)

    async def answer(self, body: bytes) -> bytes:
        """Carry out a request; the reply is sent when it is in effect."""
        request = msgspec.msgpack.decode(body, type=Request)
        loop = asyncio.get_running_loop()
        if request.table is not None:
            self._table = request.table.table()
            if self._listener is not None:
                self._responder.use(self._table, self._listener.sockets.address)
            await loop.run_in_executor(None, write_file, self._folder / TABLE, msgspec.json.encode(request.table))
        if request.listen is not None and (request.listen != self._listen or self._listener is None):
            await self._open(request.listen)
        sockets = self._listener.sockets if self._listener is not None else None
        return msgspec.msgpack.encode(Reply(sockets.address, sockets.port) if sockets is not None else Reply())

    async def _open(self, listen: Listen) -> None:
        state = self._state()
        self.close()
        sockets = open_sockets(listen, state.address if state is not None else "")
        # The address was added by an earlier process of this folder: it is removed with this one.
        sockets.added |= state is not None and state.added and state.address == sockets.address
        upstream = Upstream(listen.upstream)
        upstream.exclude((sockets.address, sockets.port))
        self._responder = Responder(upstream)
        self._responder.use(self._table, sockets.address)
        self._listener, self._listen = Listener(sockets, self._responder), listen
        await self._listener.start()
        found = State(listen, sockets.address, sockets.added)
        write_file(self._folder / STATE, msgspec.json.encode(found))

    def close(self) -> None:
        """Stop answering."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _state(self) -> State | None:
        try:
            return msgspec.json.decode((self._folder / STATE).read_bytes(), type=State)
        except (OSError, msgspec.MsgspecError):
            return None


@asynccontextmanager
async def open_name_server(folder: Path) -> AsyncIterator[Answer]:
    """Start the name server with the stored table."""
    server = NameServer(folder)
    await server.restore()
    try:
        yield server.answer
    finally:
        server.close()


if __name__ == "__main__":
    serve_detached(Path(sys.argv[1]), open_name_server, restart=True)
