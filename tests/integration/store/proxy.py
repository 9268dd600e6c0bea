"""A TCP proxy that can be cut: the network between a store and its etcd."""

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Passes everything on to one address until it is cut; mended, it lets new connections through."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._open = True
        self._mute = False
        self._port = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection and let no new one through."""
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def mute(self) -> None:
        """From now on requests get through, and answers are lost."""
        self._mute = True

    def mend(self) -> None:
        self._open, self._mute = True, False

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, back}
        for source, sink, answers in ((reader, back, False), (there, writer, True)):
            task = asyncio.create_task(self._pass_on(source, sink, answers=answers))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await source.read(1 << 16):
                if self._mute and answers:
                    continue
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.transport.abort()
            self._writers.discard(sink)
