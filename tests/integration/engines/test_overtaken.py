"""Answers of an engine about a process that ends at that moment are neither lost nor errors."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from mandor.engines.docker_api.client import ASKED_AGAIN, ApiClient, Refused
from mandor.engines.incus.client import IncusClient, Server
from mandor.engines.incus.execution import begin

ENDED = "read /proc/13655/cgroup: no such process"


async def serve(app: web.Application, socket: Path) -> web.AppRunner:
    """The caller cleans up."""
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    return runner


class Podman:
    """A server whose first `times` answers are outdated."""

    def __init__(self, times: int, message: str = ENDED) -> None:
        self.times, self.message, self.asked = times, message, 0

    async def answer(self, request: web.Request) -> web.Response:
        if request.path == "/_ping":
            return web.Response(headers={"Api-Version": "1.41"})
        self.asked += 1
        if self.asked <= self.times:
            return web.json_response({"message": self.message}, status=500)
        return web.json_response([{"Id": "one"}])


@pytest.mark.parametrize(
    "message", [ENDED, "open /proc/77/cgroup: no such file or directory"], ids=["while read", "before it is opened"]
)
async def test_a_process_that_ends_while_podman_lists_causes_no_error(tmp_path: Path, message: str) -> None:
    podman, app = Podman(2, message), web.Application()
    app.router.add_route("*", "/{path:.*}", podman.answer)
    runner, api = await serve(app, tmp_path / "s"), ApiClient("podman", tmp_path / "s", cure="")
    try:
        assert await api.get("/containers/json") == [{"Id": "one"}]
        assert podman.asked == 3
    finally:
        await api.close()
        await runner.cleanup()


@pytest.mark.parametrize(("message", "asked"), [(ENDED, 1 + ASKED_AGAIN), ("there is no space left", 1)])
async def test_other_errors_and_lasting_errors_are_raised(tmp_path: Path, message: str, asked: int) -> None:
    podman, app = Podman(1000, message), web.Application()
    app.router.add_route("*", "/{path:.*}", podman.answer)
    runner, api = await serve(app, tmp_path / "s"), ApiClient("podman", tmp_path / "s", cure="")
    try:
        with pytest.raises(Refused, match=message):
            await api.get("/containers/json")
        assert podman.asked == asked
    finally:
        await api.close()
        await runner.cleanup()


async def test_nothing_is_written_to_a_connection_that_incus_has_closed(tmp_path: Path) -> None:
    """An answer to a ping on a closed connection would lose unread data."""
    heard: dict[str, aiohttp.WSMsgType] = {}

    async def stream(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        await socket.ping(b"keepalive")
        name = request.query["secret"]
        if name in {"1", "2"}:
            await socket.send_bytes(f"from {name}".encode())
            await socket.send_str("")
        heard[name] = (await socket.receive()).type
        return socket

    async def wait(_: web.Request) -> web.Response:
        return web.json_response({"type": "sync", "metadata": {"status_code": 200, "metadata": {"return": 0}}})

    app = web.Application()
    app.router.add_get("/1.0/operations/x/websocket", stream)
    app.router.add_get("/1.0/operations/x/wait", wait)
    runner, api = await serve(app, tmp_path / "s"), IncusClient(Server(url=f"unix://{tmp_path}/s"))
    fds = {name: name for name in ("0", "1", "2", "control")}
    try:
        execution = await begin(api, {"operation": "/1.0/operations/x", "metadata": {"fds": fds}}, terminal=False)
        said = [await execution.read(), await execution.read()]
        assert sorted(each for each in said if each) == [("stderr", b"from 2"), ("stdout", b"from 1")]
        assert await execution.read() is None
        assert await execution.wait() == 0
        await execution.close()
        assert heard["1"] is heard["2"] is aiohttp.WSMsgType.CLOSE
    finally:
        await api.close()
        await runner.cleanup()
