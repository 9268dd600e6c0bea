"""Strangers who send too much, too slowly, or nothing at all: agents and admins are still served."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
import uvloop

from mandor.api.app import build_app
from mandor.api.auth import make_token
from mandor.api.caller import Caller
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.connection_limits import GRACE_SECONDS, ConnectionLimits, network_of
from mandor.api.http.server import ApiServer, ServerTls, open_socket
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.client.aio import Client
from mandor.lib.clock import SystemClock
from mandor.lib.metrics import Family
from mandor.model.meta import Meta
from mandor.model.node import Node
from mandor.model.record import Cluster, ClusterSpec
from mandor.roots import metrics_page
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api, StartApi

Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SECONDS = 60
NODE = Caller("node:n1", "node")
ADMIN = Caller("user:ani", "admin")


async def dial(url: str, context: ssl.SSLContext | None = None) -> Pair:
    host, _, port = url.partition("://")[2].partition(":")
    return await asyncio.open_connection(host, int(port), ssl=context)


async def until_end(reader: asyncio.StreamReader) -> bytes:
    """All that is answered until the connection ends."""
    async with asyncio.timeout(SECONDS):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def converse(url: str, *pieces: bytes) -> bytes:
    """Send, and read until the server closes the connection."""
    reader, writer = await dial(url)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    except ConnectionError:
        pass
    answer = await until_end(reader)
    writer.close()
    return answer


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(SECONDS):
        while not await true():
            await asyncio.sleep(0.02)


# Sizes.


async def test_a_request_line_over_the_limit_is_answered_with_414(api: Api) -> None:
    answer = await converse(api.url, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 414 ")
    assert b"application/problem+json" in answer


async def test_a_request_line_that_never_ends_is_answered_with_414(api: Api) -> None:
    assert (await converse(api.url, b"GET /", *[b"a" * 8000] * 4)).startswith(b"HTTP/1.1 414 ")


async def test_headers_over_the_limit_are_answered_with_431(api: Api) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 6000) for n in range(12))
    assert (await converse(api.url, head + b"\r\n")).startswith(b"HTTP/1.1 431 ")


async def test_a_header_that_never_ends_is_answered_with_431(api: Api) -> None:
    pieces = [b"GET /healthz HTTP/1.1\r\nx: ", *[b"a" * 60_000] * 40]
    assert (await converse(api.url, *pieces)).startswith(b"HTTP/1.1 431 ")


async def test_too_many_headers_are_answered_with_431(api: Api) -> None:
    head = b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 500
    assert (await converse(api.url, head + b"\r\n")).startswith(b"HTTP/1.1 431 ")


async def test_a_large_head_behind_a_body_is_counted_without_the_body(api: Api) -> None:
    token = await api.token("admin", "user:ani")
    first = b"POST /v1/plan HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\nauthorization: Bearer %s\r\n\r\n" % (
        token.encode()
    )
    small = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert b" 431 " not in await converse(api.url, first, b"x" * 190_000, b"x" * 10_000 + small)
    large = b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = await converse(api.url, first, b"x" * 190_000, b"x" * 10_000 + large)
    assert b" 200 " not in answer


async def test_endless_trailers_and_chunk_extensions_end_the_connection(api: Api) -> None:
    head = b"POST /v1/commit HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    for endless in (b"0\r\nx: ", b"1;"):
        answer = await converse(api.url, head, endless, *[b"a" * 60_000] * 40)
        assert b" 200 " not in answer


# Times.


async def test_slowly_sent_headers_are_answered_with_408(start_api: StartApi) -> None:
    api = await start_api(head_seconds_most=0.5)
    reader, writer = await dial(api.url)
    writer.write(b"GET /healthz HTTP/1.1\r\n")

    async def trickle() -> None:
        for number in range(SECONDS * 20):
            writer.write(b"x-%d: y\r\n" % (number % 10))
            await asyncio.sleep(0.05)

    trickling = asyncio.ensure_future(trickle())
    answer = await until_end(reader)
    trickling.cancel()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")


async def test_a_connection_that_sends_nothing_is_closed(start_api: StartApi) -> None:
    api = await start_api(head_seconds_most=0.3)
    reader, writer = await dial(api.url)
    assert await until_end(reader) == b""
    writer.close()


async def test_a_second_request_has_its_own_time(start_api: StartApi) -> None:
    api = await start_api(head_seconds_most=0.5, idle_seconds_most=SECONDS)
    reader, writer = await dial(api.url)
    for _ in range(3):
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(0.4)
    writer.write(b"GET /healthz HTTP/1.1\r\n")
    assert (await until_end(reader)).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_body_that_trickles_in_is_answered_with_408(start_api: StartApi) -> None:
    api = await start_api(body_seconds_most=0.5)
    token = await api.token("admin", "user:ani")
    reader, writer = await dial(api.url)
    lines = ["POST /v1/commit HTTP/1.1", "host: x", "content-type: application/json", "content-length: 100000"]
    writer.write("\r\n".join([*lines, f"authorization: Bearer {token}", "", ""]).encode())

    async def trickle() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.05)

    trickling = asyncio.ensure_future(trickle())
    async with asyncio.timeout(SECONDS):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
    trickling.cancel()
    writer.close()


async def test_an_unread_body_ends_with_its_connection(start_api: StartApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.api.http.bounded_protocol.BODY_GRACE_SECONDS", 0.0)
    api = await start_api(body_seconds_most=0.5)
    reader, writer = await dial(api.url)
    writer.write(b"POST /v1/commit HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n")

    async def trickle() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.05)

    trickling = asyncio.ensure_future(trickle())
    assert (await until_end(reader)).startswith(b"HTTP/1.1 401 ")
    trickling.cancel()
    writer.close()


async def test_a_refusal_is_never_the_answer_of_another_request(api: Api) -> None:
    """A request under way and rubbish behind it: the connection ends without an answer that could be mistaken."""
    token = await api.token("admin", "user:ani")
    watch = f"GET /v1/watch HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode()
    assert b" 400 " not in await converse(api.url, watch, b"\x00\x01 rubbish\r\n\r\n")


# Numbers.


async def test_idle_unauthenticated_connections_shut_out_neither_an_agent_nor_an_admin(start_api: StartApi) -> None:
    api = await start_api(connections_most=40, connections_each=10, head_seconds_most=SECONDS)
    await api.store.commit(Put(Node(meta=Meta(name="n1"))))
    node, admin = await api.token("node", "node:n1"), await api.token("admin", "user:ani")
    agent = await api.client(node)
    await agent.request("POST", "/v1/nodes/n1/heartbeat", body=b"{}")
    opened: list[Pair] = []
    try:
        for _ in range(400):
            opened.append(await dial(api.url))  # noqa: PERF401 - what is open is closed whatever happens
        await agent.request("POST", "/v1/nodes/n1/heartbeat", body=b"{}")

        async def new_one_is_served(token: str, path: str) -> bool:
            async with Client([api.url], token=token) as client:
                try:
                    await client.request("GET", path)
                except Exception:
                    return False
                return True

        await until(lambda: new_one_is_served(node, "/v1/nodes/n1"))
        await until(lambda: new_one_is_served(admin, "/v1/nodes"))
        assert len(api.server.server_state.connections) <= 40
    finally:
        for _, writer in opened:
            writer.close()


def test_the_oldest_unauthenticated_connection_of_an_address_is_closed_for_the_next() -> None:
    now, closed = [0.0], list[int]()
    limits = ConnectionLimits(100, 2, lambda: now[0])
    first = limits.enter("10.0.0.1", lambda: closed.append(1))
    second = limits.enter("10.0.0.1", lambda: closed.append(2))
    assert first is not None
    assert second is not None
    assert limits.enter("10.0.0.1", lambda: closed.append(3)) is None, "the others are too young"
    assert limits.enter("10.0.0.2", lambda: closed.append(4)) is not None, "another address has its own share"
    now[0] = GRACE_SECONDS
    limits.identify(first, NODE)
    assert limits.enter("10.0.0.1", lambda: closed.append(5)) is not None, "the agent counts no more"
    assert closed == []


def test_an_agent_is_never_closed_for_an_unauthenticated_connection_and_has_reserved_places() -> None:
    now, closed = [0.0], list[str]()
    limits = ConnectionLimits(10, 100, lambda: now[0])
    agent = limits.enter("10.0.0.1", lambda: closed.append("agent"))
    assert agent is not None
    limits.identify(agent, NODE)
    strangers = [limits.enter(f"10.1.0.{number}", lambda: closed.append("stranger")) for number in range(10)]
    assert [each is not None for each in strangers] == [True] * 5 + [False] * 5
    assert limits.enter("10.0.0.1", lambda: closed.append("agent")) is not None, "its address is known"
    now[0] = GRACE_SECONDS + 1
    for number in range(50):
        assert limits.enter(f"10.2.0.{number}", lambda: closed.append("stranger")) is not None
        now[0] += GRACE_SECONDS + 1
    assert "agent" not in closed[:-1] or closed.count("agent") == 1, "at most the one that never identified itself"
    limits.leave(agent)
    limits.leave(agent)


def test_the_connections_of_one_user_are_not_all_there_are() -> None:
    now = [0.0]
    limits = ConnectionLimits(20, 100, lambda: now[0])
    mine = [limits.enter("10.0.0.1", lambda: None) for _ in range(9)]
    for each in mine:
        assert each is not None
        limits.identify(each, ADMIN)
    assert [each.lane for each in mine if each] == ["user"] * 5 + ["stranger"] * 4


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_network_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


# TLS.


@asynccontextmanager
async def tls_server(folder: Path, **settings: object) -> AsyncIterator[tuple[str, str, str, ApiServer]]:
    """Its URL, its authority's file, a token of an admin, and the server."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key, ca = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    listener = open_socket("127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    store, clock = MemoryStore(), SystemClock()
    token, text = make_token("admin", "user:ani")
    await store.commit(Put(token), Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1"))))
    made = ApiSettings(**settings)  # type: ignore[arg-type]
    parts = ApiParts(store, clock, Heartbeats(store, clock, "s1", url), made)
    server = ApiServer(build_app(parts), parts, listener, tls=ServerTls(cert, key))
    serving = asyncio.create_task(server.serve())
    await server.listening()
    yield url, str(ca), text, server
    server.stop()
    async with asyncio.timeout(SECONDS):
        await serving


async def _stall(folder: Path) -> None:
    async with tls_server(folder, head_seconds_most=0.5) as (url, _, _, server):
        for sent in (b"", b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\n\r\n"):
            reader, writer = await dial(url)
            writer.write(sent)
            await until_end(reader)
            writer.close()

        async def none_is_counted() -> bool:
            return server.connection_limits._lanes.total() == 0

        await until(none_is_counted)


async def _stalled_many(folder: Path) -> None:
    async with tls_server(folder, connections_each=10, head_seconds_most=SECONDS) as (url, ca, token, server):
        opened = [await dial(url) for _ in range(100)]

        async def served() -> bool:
            try:
                async with Client([url], token=token, ca_file=ca) as client:
                    await client.request("GET", "/v1/nodes")
            except Exception:
                return False
            return True

        await until(served)
        assert server.connection_limits._lanes["stranger"] <= 10
        for _, writer in opened:
            writer.close()


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("attack", [_stall, _stalled_many])
def test_stalled_handshakes_end_and_block_no_other_caller(
    tmp_path: Path,
    run: Callable[[Awaitable[None]], None],
    attack: Callable[[Path], Awaitable[None]],
) -> None:
    run(attack(tmp_path))


# The agent's metrics.


async def test_the_metrics_of_an_agent_are_served_despite_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "CONNECTIONS_MOST", 4)

    async def families() -> list[Family]:
        return []

    async with metrics_page.metrics_at("127.0.0.1:0", families) as port:
        url = f"http://127.0.0.1:{port}"
        opened = [await dial(url) for _ in range(50)]
        answer = await converse(url, b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
        monkeypatch.setattr(metrics_page, "CONNECTION_SECONDS", 0.3)
        reader, writer = await dial(url)
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        assert b" 200 " not in await until_end(reader)
        assert b" 400 " in await converse(url, b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n")
        for _, each in [*opened, (reader, writer)]:
            each.close()
