"""The short way of a request through a connection: the same bytes as uvicorn's way, whatever is sent, and however."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from mandor.api.app import OPERATIONS, App, build_app
from mandor.api.auth import make_token
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.bounded_protocol import MessageLimits
from mandor.api.http.connection import Connection, ConnectionContext, Exchange
from mandor.api.http.connection_limits import ConnectionLimits
from mandor.api.http.request import Reply
from mandor.api.http.response_encoder import ResponseEncoder
from mandor.api.http.server import ApiServer, open_socket
from mandor.api.operation import JSON, Stream
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.lib.clock import ManualClock
from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore

SECRET = "5" * 64
MANY = 1_000_000
PASSES = 200
"""Of the event loop: more than any of these requests takes, none of which waits for a thread."""
GENEROUS = ApiSettings(
    address="http://127.0.0.1:1",
    requests_burst=MANY,
    beats_burst=MANY,
    strangers_burst=MANY,
    body_bytes_most=4000,
    tokens_required=True,
)


class Wire(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        if not self.closed:
            self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def abort(self) -> None:
        self.closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)


@dataclass
class Place:
    """An application, and connections to it that are made by hand."""

    parts: ApiParts
    app: App
    server: ApiServer
    node: str
    admin: str
    state: ServerState = field(default_factory=ServerState)
    encoder: ResponseEncoder = field(default_factory=ResponseEncoder)

    def connect(self, *, short: bool) -> tuple[Connection, Wire]:
        make = partial(
            Connection,
            ConnectionContext(
                self.parts.request_metrics,
                self.app.find,
                MessageLimits.of(self.parts.settings),
                ConnectionLimits(1000, 1000),
                self.encoder,
            ),
        )
        connection = make(config=self.server.config, server_state=self.state, app_state={})
        if not short:
            connection._has_fast_path = False
        wire = Wire()
        connection.connection_made(wire)
        return connection, wire

    async def talk(self, pieces: list[bytes], *, short: bool) -> tuple[bytes, bool]:
        """What comes back when this is sent, and whether the connection is over then."""
        connection, wire = self.connect(short=short)
        for piece in pieces:
            if wire.closed:
                break
            connection.data_received(piece)
            await self.go_on()
        told = wire.written, wire.closed
        connection.connection_lost(None)
        await self.settle()
        return told

    async def go_on(self) -> None:
        """Until everything is answered, or waits for what is not sent yet."""
        for _ in range(PASSES):
            await asyncio.sleep(0)
            if not self.state.tasks:
                return

    async def settle(self) -> None:
        while self.state.tasks:
            await asyncio.wait(list(self.state.tasks), timeout=20)
            await asyncio.sleep(0)
        await asyncio.sleep(0)


async def make_place() -> Place:
    clock, uids = ManualClock(), count()
    store = MemoryStore(clock=clock, new_uid=lambda: f"{next(uids):024x}")
    node, node_text = make_token("node", "node:n1", name="node.n1", secret=SECRET)
    admin, admin_text = make_token("admin", "user:ani", name="ani", secret=SECRET)
    about = Node(meta=Meta(name="n1"), status=NodeStatus(phase=NodePhase.READY))
    await store.commit(
        Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1"))), Put(node), Put(admin), Put(about)
    )
    parts = ApiParts(store, clock, Heartbeats(store, clock, "s1", ""), GENEROUS)
    listener = open_socket("127.0.0.1", 0)
    listener.close()
    app = build_app(parts)
    server = ApiServer(app, parts, listener)
    server.config.load()
    place = Place(parts, app, server, node_text, admin_text)
    place.state.default_headers = [(b"date", b"Mon, 16 Nov 2026 08:00:00 GMT")]
    return place


BEAT = json.dumps({"cluster": "c1", "usage": {"cpu_milli": 5}}).encode()
PATHS = [
    "/v1/nodes/n1/heartbeat",
    "/v1/nodes/n1/heartbeat?x=1",
    "/v1/nodes/n2/heartbeat",
    "/v1/nodes/n1",
    "/v1/nodes/n%31",
    "/v1/nodes/",
    "//v1/nodes/n1",
    "/v1/objects?key=node//n1",
    "/v1/objects?key=node%2F%2Fn1&key=x",
    "/v1/objects?key=token//ani#there",
    "/v1/commit",
    "/v1/nodes?labels=a%3Db",
    "/v1",
    "/healthz",
    "/readyz",
    "/ui/",
    "/",
    "*",
    "http://127.0.0.1/v1/nodes/n1",
    "/v1/nodes/n1?a=b?c",
    "/v1/nodés",
]
BODIES = [b"", BEAT, b"{}", b"nonsense", b'{"writes": []}', b'{"cluster": "other"}', b"[" * 3000, b"x" * 5000]
HEADERS = [
    "content-type: application/json",
    "Content-Type: application/json; charset=utf-8",
    "content-type: text/plain",
    "connection: close",
    "connection: keep-alive",
    "x-mandor-version: 99.0.0",
    "origin: http://evil.example",
    "expect: 100-continue",
    "upgrade: h2c",
    "accept: */*",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
]
METHODS = ["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"]


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    method, path = draw(st.sampled_from(METHODS)), draw(st.sampled_from(PATHS))
    if draw(st.booleans()):
        method, path = draw(
            st.sampled_from([("POST", PATHS[0]), ("GET", PATHS[3]), ("GET", PATHS[7]), ("POST", PATHS[10])])
        )
    version = draw(st.sampled_from(["1.1", "1.1", "1.1", "1.0"]))
    lines = [f"{method} {path} HTTP/{version}", "host: 127.0.0.1"]
    who = draw(st.sampled_from(["n1", "n1", "ani", "nobody", None, "Basic"]))
    if who is not None:
        name = f"node.{who}" if who == "n1" else who
        lines.append("authorization: Basic abc" if who == "Basic" else f"authorization: Bearer mdr_{name}_{SECRET}")
    lines += draw(st.lists(st.sampled_from(HEADERS), max_size=3))
    body = draw(st.sampled_from(BODIES))
    how = draw(st.sampled_from(["length", "length", "length", "chunked", "none"]))
    if how == "chunked":
        lines.append("transfer-encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    elif how == "length":
        lines.append(f"content-length: {len(body)}")
    else:
        body = b""
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@st.composite
def talks(draw: st.DrawFn) -> list[bytes]:
    """Some requests, cut anywhere: one after another, together, or in pieces."""
    everything = b"".join(draw(st.lists(requests(), min_size=1, max_size=3)))
    cuts = sorted(draw(st.lists(st.integers(0, len(everything)), max_size=3)))
    edges = [0, *cuts, len(everything)]
    return [piece for start, end in pairwise(edges) if (piece := everything[start:end])]


@given(st.lists(talks(), min_size=1, max_size=8))
@settings(max_examples=60, deadline=None)
def test_both_paths_send_the_same_bytes(conversations: list[list[bytes]]) -> None:
    async def compare() -> None:
        # Each has its own state: some of what is sent changes it.
        here, there = await make_place(), await make_place()
        for pieces in conversations:
            assert await here.talk(pieces, short=True) == await there.talk(pieces, short=False)

    asyncio.run(compare())


def _ask(method: str, path: str, token: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {token}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


async def test_what_agents_ask_all_day_goes_the_short_way() -> None:
    place = await make_place()
    for asked in (
        _ask("POST", "/v1/nodes/n1/heartbeat", place.node, BEAT),
        _ask("GET", "/v1/objects?key=node//n1", place.node),
        _ask("POST", "/v1/commit", place.node, b'{"writes": []}'),
    ):
        connection, wire = place.connect(short=True)
        connection.data_received(asked)
        assert isinstance(connection.cycle, Exchange)
        await place.settle()
        assert wire.written.startswith(b"HTTP/1.1 ")
        connection.connection_lost(None)


async def test_a_heartbeat_is_answered_before_anything_else_happens() -> None:
    place = await make_place()
    connection, wire = place.connect(short=True)
    connection.data_received(_ask("POST", "/v1/nodes/n1/heartbeat", place.node, BEAT))
    assert wire.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert not place.state.tasks
    connection.connection_lost(None)


async def test_a_body_that_comes_later_is_waited_for() -> None:
    place = await make_place()
    asked = _ask("POST", "/v1/nodes/n1/heartbeat", place.node, BEAT)
    connection, wire = place.connect(short=True)
    connection.data_received(asked[:-5])
    assert not isinstance(connection.cycle, Exchange)
    connection.data_received(asked[-5:])
    await place.settle()
    assert wire.written.startswith(b"HTTP/1.1 200 OK\r\n")
    connection.connection_lost(None)


async def test_a_disconnected_caller_gets_no_answer_and_affects_no_other() -> None:
    place = await make_place()
    connection, wire = place.connect(short=True)
    connection.data_received(_ask("GET", "/v1/objects?key=node//n1", place.node))
    connection.connection_lost(None)
    await place.settle()
    assert not wire.written


async def test_a_server_that_stops_closes_after_the_answer() -> None:
    place = await make_place()
    connection, wire = place.connect(short=True)
    connection.data_received(_ask("GET", "/v1/objects?key=node//n1", place.node))
    connection.shutdown()
    assert not wire.closed
    await place.settle()
    assert b"\r\nconnection: close\r\n" in wire.written
    assert wire.closed
    connection.connection_lost(None)


async def test_a_connection_that_stays_quiet_is_closed_and_one_that_is_used_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = await make_place()
    connection, wire = place.connect(short=True)
    now = 100.0
    monkeypatch.setattr(connection, "loop", _TurnedLoop(lambda: now))
    beat = _ask("POST", "/v1/nodes/n1/heartbeat", place.node, BEAT)
    connection.data_received(beat)
    now += 20
    connection.data_received(beat)
    now += 10
    connection._check_idle()
    assert not wire.closed
    now += 20
    connection._check_idle()
    assert wire.closed
    connection.connection_lost(None)


class _TurnedLoop:
    def __init__(self, time: Any) -> None:
        self.time = time

    def call_later(self, seconds: float, call: Any) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(3600, call)


def test_no_operation_that_shows_json_answers_in_pieces() -> None:
    for each in OPERATIONS:
        if each.gives == JSON:
            handler = each.handler.func if isinstance(each.handler, partial) else each.handler
            assert get_type_hints(handler).get("return") is not Stream, each.name


def test_a_header_cannot_smuggle_another_one_in() -> None:
    with pytest.raises(ValueError, match="HTTP does not allow"):
        ResponseEncoder().encode(Reply(200, ((b"x-a", b"b\r\nset-cookie: c"),), b""), [], keep_alive=True)
