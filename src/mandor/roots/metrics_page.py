"""Serves the metrics of an agent for Prometheus, with limits: any client that reaches the address can read them."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from mandor.errors import Unavailable
from mandor.lib.metrics import CONTENT_TYPE, Family, Metrics
from mandor.roots.settings import split_address

log = logging.getLogger("mandor.agent")

CONNECTIONS_MOST = 64
"""Maximum number of connections; a further one closes the oldest."""
CONNECTION_SECONDS = 10.0
"""Seconds after which a connection is closed: a scrape takes milliseconds."""
LINE_BYTES_MOST = 4096
FIELD_BYTES_MOST = 8190


class _Handler(RequestHandler):
    """aiohttp's handler with limits on the time of a request head and on the number of connections."""

    __slots__ = ("_end", "_open_ones")

    def __init__(self, open_ones: dict[RequestHandler, None], *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._open_ones = open_ones
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self._open_ones) >= CONNECTIONS_MOST:
            oldest = next(iter(self._open_ones))
            del self._open_ones[oldest]
            if oldest.transport is not None:
                oldest.transport.abort()
        self._open_ones[self] = None
        abort = cast("asyncio.Transport", transport).abort  # a uvloop transport is not a subclass
        self._end = asyncio.get_running_loop().call_later(CONNECTION_SECONDS, abort)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._open_ones.pop(self, None)
        if self._end is not None:
            self._end.cancel()
        super().connection_lost(exc)


@contextlib.asynccontextmanager
async def metrics_at(address: str, families: Callable[[], Awaitable[Iterable[Family]]]) -> AsyncIterator[int]:
    """Serve the families at `HOST:PORT`; return the port."""

    async def answer(request: web.Request) -> web.Response:
        found = list(await families())
        metrics = Metrics()
        metrics.add(lambda: found)
        return web.Response(body=await metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application(client_max_size=1024)
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    loop, open_ones = asyncio.get_running_loop(), dict[RequestHandler, None]()

    def handler() -> _Handler:
        limits = {"max_line_size": LINE_BYTES_MOST, "max_field_size": FIELD_BYTES_MOST}
        return _Handler(open_ones, runner.server, loop=loop, access_log=None, lingering_time=0.0, **limits)

    host, port = split_address(address)
    try:
        try:
            server = await loop.create_server(handler, host, port)
        except OSError as error:
            raise Unavailable(f"no metrics at {address}: {error.strerror or error}") from error
        async with server:
            served = server.sockets[0].getsockname()[1]
            log.info("metrics at http://%s:%d/metrics", host, served)
            yield served
    finally:
        await runner.cleanup()
