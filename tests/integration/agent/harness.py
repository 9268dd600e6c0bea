"""A control plane and one node, connected by HTTP, with real processes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from mandor.agent.agent import Agent
from mandor.agent.http_link import HttpLink
from mandor.agent.journal import Journal
from mandor.agent.settings import AgentSettings
from mandor.agent.shipping.agent_logs import AgentLogHandler
from mandor.api.app import build_app
from mandor.api.auth import make_token
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.server import ApiServer, open_socket
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.client.aio import Client
from mandor.engines.process import ProcessEngine
from mandor.lib.clock import SystemClock
from mandor.lib.egress import LOOPBACK
from mandor.lib.sealing import Sealer
from mandor.model.codec import from_plain
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.record import Cluster, ClusterSpec, Namespace, NamespaceSpec
from mandor.model.workload import Workload, WorkloadSpec, make_release
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.remote import RemoteStore

CLOCK = SystemClock()


async def eventually(true: Callable[[], Awaitable[Any]], seconds: float = 60.0) -> Any:
    async with asyncio.timeout(seconds):
        while not (found := await true()):
            await asyncio.sleep(0.05)
        return found


@dataclass
class AgentHarness:
    """A server over a memory store, which can stop and start again at the same address."""

    folder: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    url: str = ""
    parts: Any = None
    join_token: str = ""
    credential_age_seconds: float = math.inf
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    _port: int = 0
    _serving: Any = None

    async def found(self) -> None:
        await self.store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1"))))
        token, self.join_token = make_token("join", "join:test")
        user, self.user_token = make_token("admin", "user:test")
        space = Namespace(meta=Meta(name="default"), spec=NamespaceSpec(level="privileged"))
        await self.store.commit(Put(token), Put(user), Put(space))

    async def serve(self) -> None:
        listener = open_socket("127.0.0.1", self._port)
        self._port = listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        settings = ApiSettings(
            address=self.url, tokens_required=True, credential_age_seconds=self.credential_age_seconds
        )
        self.parts = ApiParts(
            store=self.store,
            clock=CLOCK,
            heartbeats=Heartbeats(self.store, CLOCK, "s1", self.url),
            settings=settings,
            sealer=Sealer.of("a key for tests"),
        )
        server = ApiServer(build_app(self.parts), self.parts, listener)
        self._serving = (server, asyncio.create_task(server.serve()))
        await server.listening()

    async def go_away(self) -> None:
        server, task = self._serving
        server.stop()
        async with asyncio.timeout(30):
            await task

    def settings(self, name: str = "n1", folder: str = "n1", token: str | None = "") -> AgentSettings:
        return AgentSettings(
            egress_allow=("*", *LOOPBACK),
            secret_files=str(self.folder),
            name=name,
            data=self.folder / folder,
            servers=[self.url],
            join_token=self.join_token if token == "" else token,
            heartbeat_seconds=0.5,
            news_seconds=2.0,
            labels={"zone": "a"},
            pool="edge",
        )

    @asynccontextmanager
    async def agent(self, settings: AgentSettings | None = None) -> AsyncIterator[Agent]:
        settings = settings or self.settings()
        journal = Journal(settings.data)
        async with (
            Client(list(settings.servers)) as client,
            ProcessEngine(settings.data / "process", limits=False) as engine,
        ):
            link = HttpLink(client, settings, journal)
            own = AgentLogHandler(settings.name)
            agent = Agent(
                settings, RemoteStore(client), link, {"process": engine}, CLOCK, journal=journal, own_logs=own
            )
            logging.getLogger("mandor").addHandler(own)
            running = asyncio.create_task(agent.run())
            try:
                yield agent
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running
                logging.getLogger("mandor").removeHandler(own)

    async def order(self, script: str, name: str = "web", **group: Any) -> Instance:
        tasks = {"main": {"command": ["/bin/sh", "-c", script], "stop": {"grace": "1s"}}}
        spec = from_plain({"groups": {"main": {"tasks": tasks, **group}}}, WorkloadSpec)
        workload = Workload(meta=Meta(name=name, namespace="default"), spec=spec)
        meta = Meta(name=f"{name}-0", namespace="default")
        instance = Instance(
            meta=meta,
            spec=InstanceSpec(workload=name, release=f"{name}.1", index=0, node="n1"),
            status=InstanceStatus(phase=Phase.RESERVED),
        )
        await self.store.commit(Put(workload), Put(make_release(workload, 1)), Put(instance))
        return await self.instance(name)

    async def instance(self, name: str = "web") -> Instance:
        found = await self.store.get(Key("instance", "default", f"{name}-0"))
        assert isinstance(found, Instance)
        return found

    async def node(self) -> Node | None:
        found = await self.store.get(Key("node", "", "n1"))
        return found if isinstance(found, Node) else None

    async def until(self, phase: Phase, name: str = "web") -> Instance:
        async def reached() -> bool:
            return (await self.instance(name)).phase is phase

        await eventually(reached)
        return await self.instance(name)

    async def end(self) -> None:
        """Stop what still runs, as a user would."""
        for each in (await self.store.list("instance")).items:
            assert isinstance(each, Instance)
            if not each.phase.over:
                await self.store.commit(Put(each.stopping("the test is over")))
                await self.until(Phase.STOPPED, each.spec.workload)

    @asynccontextmanager
    async def get(self, path: str, **query: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {"authorization": f"Bearer {self.user_token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(self.url + path, params=query) as answer,
        ):
            yield answer
