"""Keeps a gateway up to date with routes, services and instances, and reports what it has applied."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from msgspec import Struct

from mandor.client.aio import Client
from mandor.errors import MandorError
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.model.instance import Instance
from mandor.model.route import Route
from mandor.model.service import Service
from mandor.network.endpoints import Viewpoint, by_workload, seen_instance
from mandor.network.gateway.base import CertificateKey, Gateway, GatewayState, RouteKey
from mandor.network.gateway.routing import gateway_state
from mandor.store.base import Change, Filter, Store
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

KINDS = frozenset({Instance.kind, Route.kind, Service.kind})
PAUSE_SECONDS = 0.02
"""Seconds within which changes are combined into one update."""
REPORT_SECONDS = 5.0
"""Seconds between reports, and between checks that the proxy has the last state, while nothing changes."""
BACKOFF = Backoff(0.2, 5, jitter=0.2)


class GatewayLink(ABC):
    """The connection of a gateway to the control plane."""

    @abstractmethod
    async def certificate(self, route: RouteKey) -> tuple[str, str]:
        """Return the certificate chain with the key of a route as PEM text, and the content id of its secret."""

    @abstractmethod
    async def report(self, namespaces: Mapping[str, int]) -> None:
        """Report the revision that the proxy follows, by namespace with served routes."""


class _Certificate(Struct):
    certificate: str
    key: str
    secret_id: str


class _Taken(Struct):
    seconds: float


class HttpGatewayLink(GatewayLink):
    """Uses the HTTP API."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name

    async def certificate(self, route: RouteKey) -> tuple[str, str]:
        path = f"/v1/routes/{quote(route.name)}/certificate"
        found = await self._client.call("POST", path, _Certificate, query={"namespace": route.namespace})
        return f"{found.certificate.rstrip()}\n{found.key.rstrip()}\n", found.secret_id

    async def report(self, namespaces: Mapping[str, int]) -> None:
        path = f"/v1/gateways/{quote(self._name)}/applied"
        await self._client.call("POST", path, _Taken, body={"namespaces": dict(namespaces)})


class GatewayKeeper:
    """Applies all accepted routes to a gateway, after each change. Without a control plane the last state stays."""

    def __init__(self, store: Store, link: GatewayLink, gateway: Gateway, clock: Clock, view: Viewpoint) -> None:
        self._store, self._link, self._gateway, self._clock, self._view = store, link, gateway, clock, view
        self._news = asyncio.Event()
        self._certificates: dict[CertificateKey, tuple[str, str]] = {}
        """Content id and PEM text of certificates."""
        self._refused: Mapping[RouteKey, str] = {}
        self._reported: Mapping[str, int] = {}
        self._reported_at = float("-inf")
        self._stops = False
        """Whether an instance has begun to stop since the last report: its agent waits for this gateway."""

    async def run(self) -> None:
        """Follow changes until cancelled."""
        mirror = Mirror(self._store, None, Filter(kinds=KINDS))
        mirror.listen(self._changed)
        async with mirror:
            await mirror.synced()
            log.info("serving %d routes", sum(isinstance(each, Route) for each in mirror.items()))
            failures = 0
            while True:
                self._news.clear()
                try:
                    await self._update(mirror)
                    failures = 0
                except MandorError as error:
                    failures += 1
                    log.warning("cannot update the gateway: %s", error)
                    await self._clock.sleep(BACKOFF.pause(failures))
                    continue
                await wait_event(self._clock, REPORT_SECONDS, self._news)
                await self._clock.sleep(PAUSE_SECONDS)

    def _changed(self, changes: Sequence[Change]) -> None:
        for each in changes:
            after = each.after
            self._stops = self._stops or (isinstance(after, Instance) and after.spec.stop is not None)
        self._news.set()

    async def _update(self, mirror: Mirror) -> None:
        revision, stops = mirror.revision, self._stops
        self._stops = False
        try:
            routes = [each for each in mirror.items() if isinstance(each, Route)]
            complete = await self._read_certificates(routes)
            state = self._state(mirror, routes)
            refused = await self._gateway.apply(state)
            for key, reason in refused.items():
                if self._refused.get(key) != reason:
                    log.warning("route %s/%s is not served: %s", *key, reason)
            self._refused = refused
            await self._report(dict.fromkeys((each.key.namespace for each in state.routes), revision), at_once=stops)
        except BaseException:
            self._stops = self._stops or stops
            raise
        if not complete:
            self._news.set()
            await self._clock.sleep(BACKOFF.pause(1))

    def _state(self, mirror: Mirror, routes: Sequence[Route]) -> GatewayState:
        services = {
            RouteKey(each.meta.namespace, each.meta.name): each for each in mirror.items() if isinstance(each, Service)
        }
        instances = [
            seen_instance(each, each.status, self._view) for each in mirror.items() if isinstance(each, Instance)
        ]
        members = by_workload([each for each in instances if each is not None])
        return gateway_state(routes, services, members, self._view, self._text)

    def _text(self, key: CertificateKey) -> str | None:
        known = self._certificates.get(key)
        return known[1] if known is not None else None

    async def _read_certificates(self, routes: Sequence[Route]) -> bool:
        """Read new and changed certificates; return False if one could not be read and is tried again."""
        wanted = {}
        for each in routes:
            if each.secret and each.status.secret_id:
                wanted[CertificateKey(each.meta.namespace, each.secret)] = each
        self._certificates = {key: text for key, text in self._certificates.items() if key in wanted}
        complete = True
        for key, route in wanted.items():
            known = self._certificates.get(key)
            if known is not None and known[0] == route.status.secret_id:
                continue
            try:
                text, found = await self._link.certificate(RouteKey(route.meta.namespace, route.meta.name))
            except MandorError as error:
                log.warning("cannot read the certificate of route %s/%s: %s", *route.key[1:], error)
                complete = False
            else:
                self._certificates[key] = found, text
        return complete

    async def _report(self, namespaces: Mapping[str, int], *, at_once: bool) -> None:
        now = self._clock.monotonic()
        same = namespaces.keys() == self._reported.keys()
        if same and not at_once and now - self._reported_at < REPORT_SECONDS:
            return
        await self._link.report(namespaces)
        self._reported, self._reported_at = namespaces, now
