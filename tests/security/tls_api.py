"""An API server with TLS and the cluster's authority, on a clock that a test sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mandor.agent.http_link import HttpLink
from mandor.agent.journal import Journal
from mandor.agent.settings import AgentSettings
from mandor.api.app import build_app
from mandor.api.auth import make_token
from mandor.api.certificates import CertificateAuthority
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.server import ApiServer, open_socket
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.client.aio import Client
from mandor.lib.clock import SystemClock
from mandor.lib.sealing import Sealer
from mandor.model.meta import Key, Meta
from mandor.model.record import Cluster, ClusterSpec, Role, Token
from mandor.roots.certificates import ServerCertificates
from mandor.store.base import Put, Store
from mandor.store.memory import MemoryStore

CLUSTER = "c1"


class ShiftedClock(SystemClock):
    """The system's clock, ahead by as much as a test says."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@dataclass
class Secure:
    url: str
    folder: Path
    store: Store
    clock: ShiftedClock
    authority: CertificateAuthority
    certificates: ServerCertificates
    server: ApiServer
    stack: AsyncExitStack = field(repr=False)

    @property
    def ca_file(self) -> str:
        return str(self.certificates.authorities_file)

    async def token(self, role: Role, identity: str, *, fingerprint: bool = True) -> str:
        token, text = make_token(role, identity)
        await self.store.commit(Put(token))
        return f"{text}.{self.authority.fingerprint}" if fingerprint else text

    async def admin(self) -> Client:
        return await self.client(await self.token("admin", "user:ani"))

    async def client(self, token: str = "", identity: Path | None = None) -> Client:
        made = Client([self.url], token=token, ca_file=self.ca_file, identity=identity)
        return await self.stack.enter_async_context(made)

    async def agent(self, name: str, join_token: str, *, url: str = "", folder: str = "") -> tuple[HttpLink, Client]:
        """The link of an agent that has nothing but its join token, and the client that it talks through."""
        journal = Journal(self.folder / (folder or f"agent-{name}"))
        servers = (url or self.url,)
        client = await self.stack.enter_async_context(
            Client(servers, pinned=journal.authorities, identity=journal.identity)
        )
        settings = AgentSettings(name=name, data=self.folder / name, servers=servers, join_token=join_token)
        return HttpLink(client, settings, journal, pins=True), client

    async def credential(self, name: str) -> Token:
        found = await self.store.get(Key("token", "", f"node.{name}"))
        assert isinstance(found, Token)
        return found

    def take_up_certificate(self) -> None:
        """As the server does within five seconds."""
        self.certificates.keep()
        assert self.server.config.ssl is not None
        self.certificates.tls.load(self.server.config.ssl)


@asynccontextmanager
async def secure_api(folder: Path, *, hosts: tuple[str, ...] = ("localhost", "127.0.0.1")) -> AsyncIterator[Secure]:
    listener = open_socket("127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    clock = ShiftedClock()
    async with MemoryStore() as store:
        await store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec(CLUSTER))))
        sealer = Sealer.of("a key for tests")
        authority = CertificateAuthority(store, clock, sealer)
        await authority.ensure(CLUSTER)
        certificates = ServerCertificates(authority, clock, folder / "tls", list(hosts))
        certificates.keep()
        parts = ApiParts(
            store=store,
            clock=clock,
            heartbeats=Heartbeats(store, clock, "s1", url),
            settings=msgspec.structs.replace(ApiSettings(), address=url),
            authority=authority,
            sealer=sealer,
        )
        server = ApiServer(build_app(parts), parts, listener, tls=certificates.tls)
        serving = asyncio.create_task(server.serve())
        async with AsyncExitStack() as stack:
            await server.listening()
            yield Secure(url, folder, store, clock, authority, certificates, server, stack)
        server.stop()
        async with asyncio.timeout(30):
            await serving
