"""A configuration folder with plugins, and HTTP extenders, for tests of the control plane."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from mandor.roots.inquiry import HttpInquiry
from mandor.scheduler.reload import ConfigSource, Configured
from tests.scenarios.world import World

Answer = Callable[[dict[str, Any]], Any]


@asynccontextmanager
async def asking_world() -> AsyncIterator[World]:
    """Return a control plane whose scheduler can call extenders; the scheduler is not started yet."""
    made = World()
    made.checks = [made.check_capacity, made.check_count]
    made.start_controllers()
    async with HttpInquiry() as inquire:
        made.scheduler_options["inquire"] = inquire
        try:
            yield made
        finally:
            await made.__aexit__(None, None, None)


def configure(world: World, folder: Path, text: str) -> Configured:
    (folder / "scheduler.yaml").write_text(text)
    (folder / "plugins").mkdir(exist_ok=True)
    configured = Configured(ConfigSource(folder / "scheduler.yaml", folder / "plugins"))
    world.scheduler_options["profiles"] = configured.profiles
    world.start_scheduler()
    assert world.scheduler is not None
    world.start("configuration", configured.follow(world.clock, world.scheduler.use))
    return configured


class ExtenderServer:
    """Speaks the protocol as Go does: capital letters, and no key for what is not there."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.filter: Answer = lambda args: {"NodeNames": args["NodeNames"]}
        self.prioritize: Answer = lambda args: []
        self.hang = False
        self.status = 200
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        args = await request.json()
        verb = request.match_info["verb"]
        self.asked.append((verb, args))
        if self.hang:
            await asyncio.Event().wait()
        answer = self.filter(args) if verb == "filter" else self.prioritize(args)
        return web.json_response(answer, status=self.status)


@asynccontextmanager
async def served(server: ExtenderServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_post("/api/{verb}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}/api"
    try:
        yield
    finally:
        await runner.cleanup()


def extended(url: str, **fields: Any) -> str:
    described = {
        "urlPrefix": url,
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 1,
        "nodeCacheCapable": True,
        **fields,
    }
    return json.dumps({"extenders": [{key: each for key, each in described.items() if each is not None}]})


async def until(world: World, reached: Callable[[], bool]) -> None:
    """Real sockets take real time, which a clock that stands still does not give."""
    for _ in range(400):
        if reached():
            return
        await world.run(0.5)
        await asyncio.sleep(0.02)
    raise AssertionError("not reached")
