"""What orders certificates in a control plane: a store, the controller, and a gateway that serves challenges."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from mandor.acme.account import StoredAccount
from mandor.acme.client import AccountTerms, AcmeClient, trust
from mandor.acme.transport import Transport
from mandor.api.secret import opened
from mandor.controllers.certificate import CertificateController
from mandor.controllers.runner import run
from mandor.lib.clock import SystemClock
from mandor.lib.egress import Egress
from mandor.lib.sealing import Sealer
from mandor.model.meta import Key, Meta
from mandor.model.route import Route, RouteSpec, RouteTarget
from mandor.model.secret import Secret
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder
from tests.components.pebble import Pebble
from tests.integration.agent.harness import eventually


class ShiftedClock(SystemClock):
    """A clock whose wall time can be moved ahead."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


@dataclass
class Plane:
    """One store with any number of servers."""

    pebble: Pebble
    terms: AccountTerms = field(default_factory=lambda: AccountTerms("ops@example.com", agreed=True))
    store: MemoryStore = field(default_factory=MemoryStore)
    sealer: Sealer = field(default_factory=lambda: Sealer(os.urandom(32)))
    clock: ShiftedClock = field(default_factory=ShiftedClock)

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[CertificateController]:
        """A server that leads."""
        transport = Transport(self.pebble.directory, Egress(), trust(str(self.pebble.ca)))
        client = AcmeClient(
            self.pebble.directory, StoredAccount(self.store, self.sealer), self.terms, transport, self.clock
        )
        recorder = Recorder(self.store, "controllers", self.clock)
        controller = CertificateController(self.store, self.clock, recorder, client, self.sealer)
        tasks = [asyncio.create_task(each) for each in (run(controller, self.store, self.clock), recorder.run())]
        try:
            yield controller
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await transport.close()

    async def put(self, name: str, host: str, *, namespace: str = "default", path: str = "/") -> Route:
        spec = RouteSpec(host=host, path=path, to=(RouteTarget(service="shop"),))
        await self.store.commit(Put(Route(meta=Meta(name=name, namespace=namespace), spec=spec)))
        return await self.route(name, namespace)

    async def route(self, name: str, namespace: str = "default") -> Route:
        found = await self.store.get(Key(Route.kind, namespace, name))
        assert isinstance(found, Route)
        return found

    async def stored(self, name: str, namespace: str = "default") -> Secret:
        found = await self.store.get(Key(Secret.kind, namespace, name))
        assert isinstance(found, Secret)
        return found

    async def secret(self, name: str, namespace: str = "default") -> dict[str, str]:
        return opened(self.sealer, await self.stored(name, namespace)).spec.data

    async def when(self, name: str, true: Callable[[Route], bool], *, namespace: str = "default") -> Route:
        """Return the route once it is so."""

        async def so() -> Route | None:
            found = await self.route(name, namespace)
            return found if true(found) else None

        found: Route = await eventually(so)
        return found

    def answer(self, host: str, token: str) -> str | None:
        """Return what a gateway serves: the challenges in the status of the routes of a host."""
        for each in asyncio.run(self.store.list(Route.kind)).items:  # in the thread of the gateway
            if isinstance(each, Route) and each.spec.host == host and token in each.status.challenges:
                return each.status.challenges[token]
        return None


def issued(route: Route) -> bool:
    return route.status.certificate is not None and bool(route.status.certificate.secret)


def failed(route: Route) -> bool:
    return route.status.certificate is not None and bool(route.status.certificate.message)
