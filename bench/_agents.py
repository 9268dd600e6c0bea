"""Thousands of agents in one process: they join, beat, follow their orders and report, as real ones do over HTTP.

The requests are those of `mandor.agent`: one stream for all kinds, on which the supplies of an order come along; a
question for those that did not; reports of up to fifty instances in a commit, one commit on its way at a time; that an
instance starts is left out, for it runs at once. What is left out besides is what costs an agent alone: engines,
journal, probes, metrics, and log sinks, which real ones follow in a second stream that is silent here.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from typing import cast

import msgspec
from msgspec import Raw, Struct

from bench._api import Server, request
from bench.heartbeats import beat_body
from mandor.agent.reporter import BATCH_MOST
from mandor.store.remote import KEYS_MOST

CALL_SECONDS = 120.0
FOLLOWED = "instance,node,session,volume"
"""Kinds that an agent watches in one stream."""
NOBODY = Raw(b"null")
_VERSION = re.compile(rb'"version":\d+')
_CAPACITY = {"cpu_milli": 32_000, "memory_bytes": 2**38, "disk_bytes": 2**40}
_ENGINES = {"fake": {"images": True}}


class _Meta(Struct, gc=False):
    name: str
    namespace: str = "default"


class _Status(Struct, gc=False):
    phase: str
    since: float = 0.0


class _Spec(Struct, gc=False):
    workload: str
    release: str


class _Order(Struct, gc=False):
    """An instance, as much of it as an agent must look into; the rest goes back as it came."""

    meta: Raw
    spec: Raw
    status: _Status


class _Object(Struct, gc=False):
    kind: str
    meta: _Meta


class _Line(Struct, gc=False):
    revision: int = 0
    after: Raw = NOBODY
    supply: _Object | None = None


class _Revision(Struct, gc=False):
    revision: int


class _Joined(Struct, gc=False):
    credential: str
    cluster: dict[str, object]


_line = msgspec.json.Decoder(_Line)
_order = msgspec.json.Decoder(_Order)
_meta = msgspec.json.Decoder(_Meta)
_spec = msgspec.json.Decoder(_Spec)
_revision = msgspec.json.Decoder(_Revision)


@dataclass(slots=True)
class Tally:
    """Measurements of all agents; times are monotonic."""

    seen: list[float] = field(default_factory=list)
    """Time at which each order reached its node."""
    bound_at: list[float] = field(default_factory=list)
    """Wall time of the server at which each instance was bound."""
    acknowledged: list[float] = field(default_factory=list)
    """Time at which the status Running was stored."""
    running: int = 0
    wait_seconds: list[float] = field(default_factory=list)
    """Each acknowledgement, since the order came."""
    beat_seconds: list[float] = field(default_factory=list)
    conflicts: int = 0
    """Number of writes that were repeated after a conflict."""
    put_off: int = 0
    """Number of requests that were answered with 429 or 503."""
    requests: int = 0
    """Number of requests, without heartbeats and streams."""
    backlog_most: int = 0
    """Orders that had come and were not acknowledged yet, at the worst moment."""

    def reset(self) -> None:
        for each in (self.seen, self.bound_at, self.acknowledged, self.wait_seconds, self.beat_seconds):
            each.clear()
        self.running = self.conflicts = self.put_off = self.requests = self.backlog_most = 0


class Connection(asyncio.Protocol):
    """A connection that stays, for one request after another; one that the server has closed is opened again."""

    def __init__(self, target: Server) -> None:
        self._target = target
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        fresh = self._transport is None or self._transport.is_closing()
        try:
            return await self._ask(data)
        except ConnectionError:
            # The server closes what has been idle for long, at this very moment perhaps.
            if fresh:
                raise
            return await self._ask(data)

    async def _ask(self, data: bytes) -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        if self._transport is None or self._transport.is_closing():
            await loop.create_connection(lambda: self, self._target.host, self._target.port)
        assert self._transport is not None
        self._answer = loop.create_future()
        self._transport.write(data)
        async with asyncio.timeout(CALL_SECONDS):
            return await self._answer

    def data_received(self, data: bytes) -> None:
        self._got = self._got + data if self._got else data
        head = self._got.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._got.find(b"content-length: ", 0, head)
        if at >= 0:
            end = head + 4 + int(self._got[at + 16 : self._got.index(b"\r\n", at)])
            if len(self._got) < end:
                return
        elif not self._got.endswith(b"0\r\n\r\n"):
            return
        status, body, self._got = int(self._got[9:12]), self._got[head + 4 :], b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((status, body))

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server hung up"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Stream(asyncio.Protocol):
    """A watch: whole lines go to the agent; what frames the chunks begins with no brace."""

    def __init__(self, agent: Agent, data: bytes) -> None:
        self._agent, self._request = agent, data
        self._rest = b""
        self._transport: asyncio.Transport | None = None
        self.ended = False
        self.begun = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if not self.begun.done():
            if not lines[0].startswith(b"HTTP/1.1 200"):
                self.begun.set_exception(ConnectionError(data.decode(errors="replace")[:500]))
                return
            self.begun.set_result(None)
        self._agent.told([line for line in lines if line[:1] == b"{"])

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        if not self.begun.done():
            self.begun.set_exception(ConnectionError("the server hung up"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Agent:
    """One node: what its agent sends and reads, and nothing of what it would start."""

    def __init__(self, number: int, target: Server, tally: Tally, every_seconds: float) -> None:
        self.name = f"n{number}"
        self._target, self._tally, self._every = target, tally, every_seconds
        self._credential = target.tokens["join"]
        self._cluster = ""
        self._calls, self._beats = Connection(target), Connection(target)
        self._stream: Stream | None = None
        self._orders: list[tuple[float, _Order]] = []
        self._wake = asyncio.Event()
        self._names: list[str] = []
        self._supplies: set[str] = set()
        self.ready = False
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Wait until the agent watches its orders."""
        joined = msgspec.json.decode(await self._call("POST", f"/v1/nodes/{self.name}/join", b"{}"), type=_Joined)
        self._credential, self._cluster = joined.credential, str(joined.cluster["id"])
        await self._call("GET", "/v1")
        node = json.loads(await self._call("GET", f"/v1/nodes/{self.name}"))
        node["status"] |= {"capacity": _CAPACITY, "engines": _ENGINES}
        await self._call("POST", "/v1/commit", json.dumps({"writes": [{"put": node}]}).encode())
        await self._beat()
        await self._follow()
        self.tasks = [asyncio.create_task(self._beat_on()), asyncio.create_task(self._acknowledge_on())]

    async def _follow(self) -> None:
        """List, then watch from there."""
        listed = await self._call("GET", f"/v1/snapshot?kind={FOLLOWED}&node={self.name}")
        first, *lines = [line for line in listed.split(b"\n") if line[:1] == b"{"]
        self._look([line for line in lines if line.startswith(b'{"kind"')])
        since = _revision.decode(first).revision
        path = f"/v1/watch?kind={FOLLOWED}&node={self.name}&since={since}&supplies=true"
        stream = self._stream = Stream(self, self._request("GET", path))
        await asyncio.get_running_loop().create_connection(lambda: stream, self._target.host, self._target.port)
        await stream.begun

    async def _ask(self, data: bytes) -> tuple[int, bytes]:
        """Retry refused requests, as agents do."""
        while True:
            self._tally.requests += 1
            status, answer = await self._calls.ask(data)
            if status not in {429, 503}:
                return status, answer
            self._tally.put_off += 1
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _call(self, method: str, path: str, body: bytes = b"") -> bytes:
        status, answer = await self._ask(self._request(method, path, body))
        if status >= 300:
            raise ConnectionError(f"{method} {path}: {status} {answer.decode(errors='replace')[:300]}")
        return answer

    def _request(self, method: str, path: str, body: bytes = b"") -> bytes:
        return request(method, path, self._target.host, self._credential, body)

    # Heartbeats.

    async def _beat(self) -> None:
        body = beat_body(self._cluster, self._names)
        path = f"/v1/nodes/{self.name}/heartbeat"
        begun = time.monotonic()
        status, answer = await self._beats.ask(self._request("POST", path, body))
        assert status == 200, answer
        self._tally.beat_seconds.append(time.monotonic() - begun)

    async def _beat_on(self) -> None:
        await asyncio.sleep(random.random() * self._every)
        while True:
            await self._beat()
            await asyncio.sleep(self._every * random.uniform(0.9, 1.1))

    # Orders.

    def told(self, lines: list[bytes]) -> None:
        read = [_line.decode(line) for line in lines]
        for supply in (each.supply for each in read if each.supply is not None):
            self._supplies.add(f"{supply.kind}/{supply.meta.namespace}/{supply.meta.name}")
        self._look([bytes(each.after) for each in read if each.supply is None])

    def _look(self, objects: list[bytes]) -> None:
        now = time.monotonic()
        for after in objects:
            if after.startswith(b'{"kind":"node"'):
                self.ready = b'"phase":"Ready"' in after
            elif after.startswith(b'{"kind":"instance"'):
                order = _order.decode(after)
                if order.status.phase == "Reserved":
                    self._tally.seen.append(now)
                    self._tally.bound_at.append(order.status.since)
                    self._orders.append((now, order))
                    self._wake.set()

    async def _acknowledge_on(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            orders, self._orders = self._orders, []
            if orders:
                await self._acknowledge(orders)

    async def _acknowledge(self, orders: list[tuple[float, _Order]]) -> None:
        tally = self._tally
        tally.backlog_most = max(tally.backlog_most, len(tally.seen) - len(tally.acknowledged))
        # What stands together is asked for together, as agents do.
        specs = [_spec.decode(each.spec) for _, each in orders]
        keys = {f"release/default/{spec.release}" for spec in specs} | {
            f"workload/default/{spec.workload}" for spec in specs
        }
        wanted = sorted(keys - self._supplies)
        for start in range(0, len(wanted), KEYS_MOST):
            query = "&".join(f"key={key}" for key in wanted[start : start + KEYS_MOST])
            await self._call("GET", f"/v1/objects?{query}")
        for start in range(0, len(orders), BATCH_MOST):
            await self._report_all(orders[start : start + BATCH_MOST])

    async def _report_all(self, orders: list[tuple[float, _Order]]) -> None:
        tally, began = self._tally, b"%f" % time.time()
        status = b'{"phase":"Running","ready":true,"engine":"fake","since":%b,"started_at":%b}' % (began, began)
        objects = await self._report([order for _, order in orders], status)
        now = time.monotonic()
        tally.acknowledged += [now] * len(orders)
        tally.wait_seconds += [now - since for since, _ in orders]
        tally.running += len(orders)
        self._names += [f"default/{_meta.decode(each.meta).name}" for each in objects]

    async def _report(self, objects: list[_Order], status: bytes) -> list[_Order]:
        """Write statuses and return them as stored; after a conflict, read and write each one alone, as agents do."""
        puts = [
            b'{"put":{"kind":"instance","meta":%b,"spec":%b,"status":%b}}'
            % (bytes(each.meta), bytes(each.spec), status)
            for each in objects
        ]
        body = b'{"writes":[%b]}' % b",".join(puts)
        code, answer = await self._ask(self._request("POST", "/v1/commit", body))
        if code == 409:
            self._tally.conflicts += 1
            return [(await self._report([await self._read(each)], status))[0] for each in objects]
        assert code == 200, answer
        version = b'"version":%d' % _revision.decode(answer).revision
        return [_Order(Raw(_VERSION.sub(version, bytes(each.meta))), each.spec, each.status) for each in objects]

    async def _read(self, known: _Order) -> _Order:
        name = _meta.decode(known.meta).name
        return _order.decode(await self._call("GET", f"/v1/instances/{name}?namespace=default"))

    def check(self) -> None:
        """Raise what it failed with."""
        for task in self.tasks:
            if task.done():
                task.result()
                raise ConnectionError(f"{self.name} has ended")
        if self._stream is not None and self._stream.ended:
            raise ConnectionError(f"the stream of {self.name} has ended")

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        for each in (self._calls, self._beats, self._stream):
            if each is not None:
                each.close()
        for error in ended:
            if isinstance(error, Exception):
                raise error


async def start_agents(
    target: Server, count: int, tally: Tally, every_seconds: float, at_once: int = 50
) -> list[Agent]:
    """All joined, with their streams open, and taken for ready by the control plane."""
    agents = [Agent(number, target, tally, every_seconds) for number in range(count)]
    for start in range(0, count, at_once):
        await asyncio.gather(*(each.start() for each in agents[start : start + at_once]))
    async with asyncio.timeout(CALL_SECONDS):
        while not all(each.ready for each in agents):
            await asyncio.sleep(0.05)
    return agents
