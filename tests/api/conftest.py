"""A real API server on a free port, over a memory store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import pytest

from mandor.api.app import build_app
from mandor.api.auth import Auth, make_token
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.server import ApiServer, open_socket
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.client.aio import Client
from mandor.lib.clock import SystemClock
from mandor.lib.sealing import Sealer
from mandor.model.meta import Meta
from mandor.model.record import (
    ALL_NAMESPACES,
    FIRST_NAMESPACE_USER,
    Cluster,
    ClusterSpec,
    Namespace,
    NamespaceSpec,
    NamespaceStatus,
    Role,
)
from mandor.roots.forecast import make_scheduling
from mandor.scheduler.consultations import Inquire, refuse_questions
from mandor.scheduler.reload import ConfigSource
from mandor.store.base import Put, Store
from mandor.store.memory import MemoryStore


@dataclass
class Api:
    """A running server, and the ways to talk to it."""

    url: str
    store: Store
    parts: ApiParts
    server: ApiServer
    stack: AsyncExitStack = field(repr=False)

    async def token(
        self, role: Role, identity: str, namespaces: tuple[str, ...] = (ALL_NAMESPACES,), expires_at: float = 0.0
    ) -> str:
        """A token of that role, as its bearer shows it."""
        name = f"node.{identity.removeprefix('node:')}" if role == "node" else ""
        token, text = make_token(role, identity, name=name, namespaces=namespaces, expires_at=expires_at)
        await self.store.commit(Put(token))
        return text

    async def client(self, token: str = "") -> Client:
        return await self.stack.enter_async_context(Client([self.url], token=token))

    async def session(self, token: str = "") -> aiohttp.ClientSession:
        """Plain HTTP, for what a client would not send."""
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return await self.stack.enter_async_context(aiohttp.ClientSession(self.url, headers=headers))


StartApi = Callable[..., Awaitable[Api]]


@asynccontextmanager
async def running_api(
    store: Store,
    settings: ApiSettings,
    auth: Auth | None = None,
    *,
    config: ConfigSource | None = None,
    inquire: Inquire = refuse_questions,
    clusters: tuple[str, ...] = (),
    simulate: Callable[[str, int], Awaitable[tuple[bytes, str]]] | None = None,
) -> AsyncIterator[Api]:
    listener = open_socket("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    clock = SystemClock()
    parts = ApiParts(
        store=store,
        clock=clock,
        heartbeats=Heartbeats(store, clock, "s1", url),
        settings=_with_address(settings, url),
        auth=auth,  # type: ignore[arg-type]
        scheduling=make_scheduling(config or ConfigSource(), inquire),
        sealer=Sealer.of("a key for tests"),
        spare_clusters=frozenset(clusters),
        simulate=simulate,
    )
    server = ApiServer(build_app(parts), parts, listener)
    serving = asyncio.create_task(server.serve())
    async with AsyncExitStack() as stack:
        await server.listening()
        yield Api(url, store, parts, server, stack)
    server.stop()
    async with asyncio.timeout(30):
        await serving


def default_namespace() -> Namespace:
    """As `mandor dev` makes it: at the level that allows everything."""
    return Namespace(
        meta=Meta(name="default"),
        spec=NamespaceSpec(level="privileged"),
        status=NamespaceStatus(first_user=FIRST_NAMESPACE_USER),
    )


def _with_address(settings: ApiSettings, url: str) -> ApiSettings:
    import msgspec

    return msgspec.structs.replace(settings, address=url)


@pytest.fixture
async def start_api() -> AsyncIterator[StartApi]:
    """Starts servers: `await start_api(store=…, tokens_required=…, …)`."""
    async with AsyncExitStack() as stack:

        async def start(
            store: Store | None = None,
            config: ConfigSource | None = None,
            inquire: Inquire = refuse_questions,
            clusters: tuple[str, ...] = (),
            simulate: Callable[[str, int], Awaitable[tuple[bytes, str]]] | None = None,
            **settings: object,
        ) -> Api:
            store = store if store is not None else await stack.enter_async_context(MemoryStore())
            if await store.get(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1")).key) is None:
                await store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1"))))
            default = default_namespace()
            if await store.get(default.key) is None:
                await store.commit(Put(default))
            made = ApiSettings(**settings)  # type: ignore[arg-type]
            running = running_api(store, made, config=config, inquire=inquire, clusters=clusters, simulate=simulate)
            return await stack.enter_async_context(running)

        yield start


@pytest.fixture
async def api(start_api: StartApi) -> Api:
    """A server that asks for tokens."""
    return await start_api(tokens_required=True)


@pytest.fixture
async def dev(start_api: StartApi) -> Api:
    """A server that asks for no tokens, as `mandor dev` starts it."""
    return await start_api(tokens_required=False)
