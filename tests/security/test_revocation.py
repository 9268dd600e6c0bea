"""A token that is revoked, expires or loses namespaces ends every call that was opened with it, on every server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import aiohttp
import msgspec
import pytest

from mandor.api.app import OPERATIONS
from mandor.api.operation import JSON
from mandor.api.routes import forward, images, sessions
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.record import Role, Session, Token
from mandor.store.base import Delete, Put, Store
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api, StartApi
from tests.api.test_sessions import agent, log_frame, running_instance

SCENARIO = b"name: own\nnodes: [{name: n1}]\nworkloads:\n- {name: web, command: [run]}\nend: 2m\n"
END_SECONDS = 20.0
"""Far more than it takes on a busy machine, and far less than the ten seconds between two bookmarks of a watch, times
two, that a server without the mechanism would need."""


@dataclass
class Two:
    """Two servers of one cluster; calls are opened at the second, tokens are revoked through the first."""

    first: Api
    second: Api

    @property
    def store(self) -> Store:
        return self.first.store


@pytest.fixture
async def two(start_api: StartApi) -> Two:
    store = MemoryStore()

    async def simulate(scenario: str, seeds: int) -> tuple[bytes, str]:
        await asyncio.Event().wait()
        return b"{}", ""

    first = await start_api(store=store, tokens_required=True)
    second = await start_api(store=store, tokens_required=True, simulate=simulate)
    await store.commit(Put(Node(meta=Meta(name="n1"), status=NodeStatus(phase=NodePhase.READY))))
    await running_instance(store)
    return Two(first, second)


End = Callable[[Two, str], Awaitable[None]]


async def delete(two: Two, name: str) -> None:
    admin = await two.first.client(await two.first.token("admin", "user:root"))
    await admin.call("DELETE", f"/v1/tokens/{name}", dict)


async def expire(two: Two, name: str) -> None:
    token = await _token(two.store, name)
    await two.store.commit(Put(token.changed(spec=msgspec.structs.replace(token.spec, expires_at=time.time() + 0.5))))


async def narrow(two: Two, name: str) -> None:
    token = await _token(two.store, name)
    await two.store.commit(Put(token.changed(spec=msgspec.structs.replace(token.spec, namespaces=("elsewhere",)))))


async def _token(store: Store, name: str) -> Token:
    found = await store.get(Key("token", "", name))
    assert isinstance(found, Token)
    return found


@asynccontextmanager
async def talking_agent(two: Two) -> AsyncIterator[None]:
    """Writes a line of log every tenth of a second, or takes what comes, for ever."""

    async def serve(session: Session, line: object) -> None:
        while True:
            await line.send(log_frame("tick"))  # type: ignore[attr-defined]
            await asyncio.sleep(0.1)

    async with agent(two.second.url, await two.first.token("node", "node:n1"), serve):
        yield


async def open_http(two: Two, text: str, path: str, stack: AsyncExitStack, method: str = "GET") -> aiohttp.StreamReader:
    http = await stack.enter_async_context(
        aiohttp.ClientSession(two.second.url, headers={"authorization": f"Bearer {text}"})
    )
    body = {"data": SCENARIO, "headers": {"content-type": "application/yaml"}} if method == "POST" else {}
    answer = await http.request(method, path, **body)  # type: ignore[arg-type]
    stack.callback(answer.close)
    assert answer.status == 200, await answer.text()
    return answer.content


async def ended(content: aiohttp.StreamReader) -> bytes:
    """Read the answer to its end, which has to come soon."""
    read = b""
    async with asyncio.timeout(END_SECONDS):
        try:
            while piece := await content.readany():
                read += piece
        except aiohttp.ClientError:
            read += b"\nbroken off"
    return read


async def token_of(two: Two, role: Role = "operator", identity: str = "user:ani") -> tuple[str, str]:
    text = await two.first.token(role, identity, ("default",) if role in {"operator", "viewer"} else ("*",))
    return text, text.removeprefix("mdr_").rpartition("_")[0]


@pytest.mark.parametrize("end", [delete, expire, narrow])
async def test_a_watch_ends_and_shows_why(two: Two, end: End) -> None:
    text, name = await token_of(two)
    async with AsyncExitStack() as stack:
        content = await open_http(two, text, "/v1/watch?kind=workload&namespace=default", stack)
        await content.readline()
        await end(two, name)
        last = json.loads((await ended(content)).splitlines()[-1])
        assert last["error"]["code"] in {"unauthenticated", "forbidden"}


@pytest.mark.parametrize("end", [delete, expire, narrow])
async def test_a_log_that_is_followed_breaks_off(two: Two, end: End) -> None:
    text, name = await token_of(two)
    async with AsyncExitStack() as stack, talking_agent(two):
        content = await open_http(two, text, "/v1/instances/web-0/logs?follow=true", stack)
        assert await content.readline() == b"tick\n"
        await end(two, name)
        assert b"broken off" in await ended(content)


@pytest.mark.parametrize("end", [delete, expire, narrow])
@pytest.mark.parametrize("path", ["/v1/instances/web-0/exec", "/v1/instances/web-0/forward", "/v1/nodes/n1/images"])
async def test_a_session_ends_with_the_reason(two: Two, end: End, path: str) -> None:
    images_too = "images" in path
    text = await two.first.token("operator", "user:ani", ("*",) if images_too else ("default",))
    name = text.removeprefix("mdr_").rpartition("_")[0]
    query = (
        [("size", "1000000"), ("names", "a:1")]
        if images_too
        else [("port", "80")]
        if "forward" in path
        else [("command", "sh")]
    )
    client = await two.second.client(text)
    async with talking_agent(two), await client.dial(path, query=query) as line:
        assert await line.receive() is not None
        await end(two, name)
        frames: list[bytes] = []
        async with asyncio.timeout(END_SECONDS):
            while (frame := await line.receive()) is not None:
                frames.append(frame)
        assert frames[-1][:1] == b"\x03"
        assert json.loads(frames[-1][1:])["code"] in {"unauthenticated", "forbidden"}
    async with asyncio.timeout(END_SECONDS):
        while (await two.store.list("session")).items:
            await asyncio.sleep(0.01)


async def test_a_simulation_is_called_off(two: Two) -> None:
    text, name = await token_of(two)
    async with AsyncExitStack() as stack:
        content = await open_http(two, text, "/v1/simulate", stack, method="POST")
        await delete(two, name)
        assert b"broken off" in await ended(content)


async def test_a_node_without_its_credential_loses_its_watch_and_its_sessions(two: Two) -> None:
    text = await two.first.token("node", "node:n1")
    operator = await two.second.client(await two.first.token("operator", "user:ani"))
    over = asyncio.Event()

    async def serve(session: Session, line: object) -> None:
        await line.send(b"\x01hello")  # type: ignore[attr-defined]
        while await line.receive() is not None:  # type: ignore[attr-defined]
            pass
        over.set()

    async with AsyncExitStack() as stack:
        content = await open_http(two, text, "/v1/watch?kind=instance&node=n1", stack)
        async with (
            agent(two.second.url, text, serve),
            await operator.dial("/v1/instances/web-0/exec", query=[("command", "sh")]) as line,
        ):
            assert await line.receive() == b"\x01hello"
            await delete(two, "node.n1")
            async with asyncio.timeout(END_SECONDS):
                await over.wait()
                while await line.receive() is not None:
                    pass
        assert b"unauthenticated" in await ended(content)


async def test_a_component_without_its_token_loses_its_watch(two: Two) -> None:
    text, name = await token_of(two, "component", "component:scheduler")
    async with AsyncExitStack() as stack:
        content = await open_http(two, text, "/v1/watch", stack)
        await delete(two, name)
        assert b"unauthenticated" in await ended(content)


async def test_a_caller_that_does_not_read_is_cut_off(two: Two) -> None:
    text, name = await token_of(two, "admin", "user:budi")
    async with AsyncExitStack() as stack:
        await open_http(two, text, "/v1/watch", stack)
        async with asyncio.timeout(END_SECONDS):
            while not len(two.second.parts.revocation):
                await asyncio.sleep(0.01)
        await delete(two, name)
        async with asyncio.timeout(END_SECONDS):
            while len(two.second.parts.revocation) or len(two.second.parts.streams):
                await asyncio.sleep(0.01)


async def test_what_others_have_open_goes_on(two: Two) -> None:
    text, name = await token_of(two)
    other = await two.first.token("viewer", "user:budi")
    async with AsyncExitStack() as stack:
        mine = await open_http(two, text, "/v1/watch?kind=workload&namespace=default", stack)
        theirs = await open_http(two, other, "/v1/watch?kind=workload", stack)
        await delete(two, name)
        await ended(mine)
        await running_instance(two.store, "web-1")
        assert not theirs.at_eof()
        assert len(two.second.parts.streams) == 1


async def test_a_token_that_was_revoked_before_the_call_was_registered_opens_nothing(two: Two) -> None:
    text, name = await token_of(two)
    caller = await two.second.parts.auth.bearer(text)
    token = await _token(two.store, name)
    await two.store.commit(Delete(token.key, token.meta.version))
    from mandor.errors import Unauthenticated

    with pytest.raises(Unauthenticated):
        async with two.second.parts.revocation.guard(caller):
            await asyncio.Event().wait()


def test_every_answer_in_pieces_and_every_socket_is_covered_here() -> None:
    """A new one has to be tried above, and its handler has to pass through `Streams.run` or `Sessions.dial`."""
    pieces = {each.name for each in OPERATIONS if each.gives != JSON and not each.open}
    assert pieces - {"metrics"} == {"watch", "snapshot", "backup", "logs", "simulate"}
    assert {*sessions.WEBSOCKETS, *images.WEBSOCKETS, *forward.WEBSOCKETS} == {
        "/v1/instances/{name}/exec",
        "/v1/instances/{name}/forward",
        "/v1/sessions/{name}",
        "/v1/nodes/{name}/images",
    }
