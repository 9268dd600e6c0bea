"""A receiver of webhooks for tests: what came, and what it answers."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Hook:
    port: int = 0
    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    bodies: list[bytes] = field(default_factory=list)
    seen: list[dict[str, str]] = field(default_factory=list)
    scheme: str = "http"
    runner: web.AppRunner | None = None
    tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://localhost:{self.port}/hook"

    async def handle(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.hang:
            await asyncio.Event().wait()
        if 200 <= self.status < 300:
            self.bodies.append(body)
            self.seen.append(dict(request.headers))
        return web.Response(status=self.status, headers=self.headers, text="" if self.status == 204 else "so it is")

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/hook", self.handle)
        self.runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", self.port, ssl_context=self.tls)
        await site.start()
        self.port = self.runner.addresses[0][1]

    async def stop(self) -> None:
        if self.runner is not None:
            runner, self.runner = self.runner, None
            await runner.cleanup()

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        await self.stop()
        try:
            yield
        finally:
            await self.start()


@asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None) -> AsyncIterator[Hook]:
    hook = Hook(tls=tls, scheme="https" if tls else "http")
    await hook.start()
    try:
        yield hook
    finally:
        await hook.stop()
