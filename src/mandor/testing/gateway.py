"""Conformance suite for gateways: subclass `GatewaySuite` and define a fixture that starts the proxy."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from mandor.lib.x509 import Pair, make_authority
from mandor.model.route import (
    RateLimit,
    RouteRedirect,
    RouteRewrite,
    RouteSpec,
    RouteTarget,
)
from mandor.network.base import Endpoint
from mandor.network.gateway.base import (
    CertificateKey,
    ChallengeKey,
    Gateway,
    GatewayRoute,
    GatewayState,
    RouteKey,
)

TO = (RouteTarget(service="shop"),)


class Backend:
    """An instance: answers with its port, the path and the headers that it received, and echoes WebSockets."""

    def __init__(self) -> None:
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            line = web.WebSocketResponse()
            await line.prepare(request)
            async for message in line:
                await line.send_str(f"{self.port} {message.data}")
            return line
        await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        return web.json_response({"port": self.port, "path": request.raw_path, "headers": headers})


def route(name: str = "shop", ports: Iterable[int] | Mapping[int, int] = (), **parts: Any) -> GatewayRoute:
    """Return a route to endpoints of this machine, by port or with weights by port."""
    weights = ports if isinstance(ports, Mapping) else dict.fromkeys(ports, 128)
    outside = {key: parts.pop(key) for key in ("balance", "affinity_seconds", "certificate") if key in parts}
    spec = RouteSpec(**({"host": "shop.test", "to": () if "redirect" in parts else TO} | parts))
    endpoints = tuple(Endpoint("127.0.0.1", port, weight=weight) for port, weight in sorted(weights.items()))
    return GatewayRoute(key=RouteKey("default", name), spec=spec, endpoints=endpoints, **outside)


class GatewaySuite:
    """Tests of every gateway, with HTTP servers as instances. Subclasses define the fixture `gateway`."""

    http_port = 0
    https_port = 0
    tcp_port = 0

    @pytest.fixture
    async def backends(self) -> AsyncIterator[list[Backend]]:
        """Three instances."""
        found = [Backend() for _ in range(3)]
        for each in found:
            await each.start()
        yield found
        for each in found:
            await each.stop()

    async def ask(
        self, path: str = "/", *, host: str = "shop.test", method: str = "GET", secure: bool = False, **given: Any
    ) -> tuple[int, Any, Mapping[str, str]]:
        """Send a request over a connection of its own; return status, answer and headers."""
        headers = {"Host": host} | given.pop("headers", {})
        port = self.https_port if secure else self.http_port
        url = f"{'https' if secure else 'http'}://127.0.0.1:{port}{path}"
        trust = given.pop("ssl", True)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                *(method, URL(url, encoded=True)),
                headers=headers,
                allow_redirects=False,
                ssl=trust,
                server_hostname=host if secure else None,
                timeout=aiohttp.ClientTimeout(30),
                **given,
            ) as answer,
        ):
            json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if json else answer.text()), answer.headers

    async def chosen(self, path: str = "/", **given: Any) -> int:
        """Return the port of the instance that answers."""
        status, answer, _ = await self.ask(path, **given)
        assert status == 200, (status, answer)
        return int(answer["port"])

    @pytest.mark.req("S2-33")
    async def test_hosts_and_paths_select_the_route(self, gateway: Gateway, backends: list[Backend]) -> None:
        one, two, three = (each.port for each in backends)
        refused = await gateway.apply(
            GatewayState(
                (
                    route("all", [one]),
                    route("api", [two], path="/api"),
                    route("exact", [three], path="/api/exact", path_match="exact"),
                    route("wild", [two], host="*.test"),
                    route("rest", [three], host=""),
                )
            )
        )
        assert refused == {}
        assert await self.chosen("/") == one
        assert await self.chosen("/apis") == one
        assert await self.chosen("/api") == two
        assert await self.chosen("/api/x?q=/other") == two
        assert await self.chosen("/api/exact") == three
        assert await self.chosen("/api/exact/not") == two
        assert await self.chosen("/", host="other.test") == two
        assert await self.chosen("/", host="SHOP.test:1234") == one
        assert await self.chosen("/", host="deep.other.test") == three
        assert await self.chosen("/", host="127.0.0.1") == three

    @pytest.mark.req("S2-33")
    async def test_headers_methods_and_regular_expressions_select_the_route(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        one, two, three = (each.port for each in backends)
        routes = (
            route("all", [one]),
            route("canary", [two], headers={"X-Canary": "yes, always", "X-Any": ""}),
            route("writes", [three], methods=("POST", "PUT")),
            route("numbers", [two], path=r"/orders/[0-9]+", path_match="regex"),
        )
        await gateway.apply(GatewayState(routes))
        assert await self.chosen() == one
        assert await self.chosen(headers={"x-canary": "yes, always", "x-any": "1"}) == two
        assert await self.chosen(headers={"x-canary": "yes, always"}) == one
        assert await self.chosen(headers={"x-canary": "yes", "x-any": "1"}) == one
        assert await self.chosen(method="POST") == three
        assert await self.chosen("/orders/17") == two
        assert await self.chosen("/orders/17/x") == one
        assert await self.chosen("/x/orders/17") == one

    async def test_a_request_without_a_route_is_answered_with_404_and_one_without_an_instance_with_503(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        await gateway.apply(GatewayState((route(), route("api", path="/api", host="api.test"))))
        assert (await self.ask())[0] == 503
        assert (await self.ask("/other", host="api.test"))[0] == 404
        assert (await self.ask(host="unknown.test"))[0] == 404

    @pytest.mark.req("S2-33")
    async def test_redirects_replace_scheme_host_and_path(self, gateway: Gateway) -> None:
        await gateway.apply(
            GatewayState(
                (
                    route("host", redirect=RouteRedirect(host="new.test")),
                    route("prefix", path="/old", redirect=RouteRedirect(path="/new%20", scheme="https", code=301)),
                    route("root", path="/gone", redirect=RouteRedirect(path="/", code=307)),
                    route("whole", path="/a", path_match="exact", redirect=RouteRedirect(path="/b", code=308)),
                )
            )
        )

        async def location(path: str) -> tuple[int, str]:
            status, _, headers = await self.ask(path)
            return status, headers.get("Location", "")

        assert await location("/x/y?z=1") == (302, "http://new.test/x/y?z=1")
        assert await location("/old/deep?z=%25") == (301, "https://shop.test/new%20/deep?z=%25")
        assert await location("/old") == (301, "https://shop.test/new%20")
        assert await location("/gone") == (307, "http://shop.test/")
        assert await location("/gone/x") == (307, "http://shop.test/x")
        assert await location("/a?b") == (308, "http://shop.test/b?b")

    @pytest.mark.req("S2-33")
    async def test_rewrites_change_what_the_instance_receives(self, gateway: Gateway, backends: list[Backend]) -> None:
        ports = [backends[0].port]
        await gateway.apply(
            GatewayState(
                (
                    route("strip", ports, path="/api", rewrite=RouteRewrite(path="/")),
                    route("other", ports, path="/v1", rewrite=RouteRewrite(path="/v2", host="inner.test")),
                    route("whole", ports, path="/x", path_match="exact", rewrite=RouteRewrite(path="/y")),
                )
            )
        )

        async def received(path: str) -> tuple[str, str]:
            _, answer, _ = await self.ask(path)
            return answer["path"], answer["headers"]["host"]

        assert await received("/api") == ("/", "shop.test")
        assert await received("/api/a/b?c=d") == ("/a/b?c=d", "shop.test")
        assert await received("/v1/a") == ("/v2/a", "inner.test")
        assert await received("/v1") == ("/v2", "inner.test")
        assert await received("/x?q") == ("/y?q", "shop.test")

    async def test_the_instance_sees_the_address_of_the_client_and_no_invented_one(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        await gateway.apply(GatewayState((route(ports=[backends[0].port]),)))
        forged = {"X-Forwarded-For": "10.1.2.3", "Forwarded": "for=10.1.2.3", "X-Forwarded-Proto": "https"}
        _, answer, _ = await self.ask(headers=forged)
        seen = answer["headers"]
        assert (seen["x-forwarded-for"], seen["x-forwarded-proto"]) == ("127.0.0.1", "http")
        assert "forwarded" not in seen

    @pytest.mark.req("S2-33")
    async def test_requests_are_spread_by_weight(self, gateway: Gateway, backends: list[Backend]) -> None:
        one, two, _ = (each.port for each in backends)
        await gateway.apply(GatewayState((route(ports={one: 256, two: round(256 * 5 / 95)}),)))
        found: Counter[int] = Counter()
        async with aiohttp.ClientSession(headers={"Host": "shop.test"}) as session:
            for _ in range(2000):
                async with session.get(f"http://127.0.0.1:{self.http_port}/") as answer:
                    found[(await answer.json())["port"]] += 1
        assert 80 <= found[two] <= 120, found

    async def test_endpoints_change_without_a_lost_request_or_a_closed_stream(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        ports = [each.port for each in backends]
        stays, failures, stop = ports[0], [], asyncio.Event()
        await gateway.apply(GatewayState((route(ports=ports), route("stay", [stays], host="stay.test"))))
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(30)) as session:

            async def load() -> None:
                while not stop.is_set():
                    async with session.get(f"http://127.0.0.1:{self.http_port}/", headers={"Host": "shop.test"}) as it:
                        if it.status != 200:
                            failures.append(it.status)
                    await asyncio.sleep(0.005)

            url = f"http://127.0.0.1:{self.http_port}/"
            line = await session.ws_connect(url, headers={"Host": "stay.test"})
            clients = [asyncio.create_task(load()) for _ in range(4)]
            for step in range(6):
                moved = backends[1 + step % 2]
                left = [port for port in ports if port != moved.port]
                routes = [route(ports=left), route("stay", [stays], host="stay.test")]
                if step == 3:  # a new route needs more than a change of endpoints
                    routes.append(route(f"new{step}", [stays], host=f"new{step}.test"))
                await gateway.apply(GatewayState(tuple(routes)))
                await moved.stop()
                await line.send_str(f"step {step}")
                assert await line.receive_str(timeout=30) == f"{stays} step {step}"
                await moved.start()
                await gateway.apply(GatewayState((route(ports=ports), *routes[1:])))
            stop.set()
            await asyncio.gather(*clients)
            await line.close()
        assert failures == []

    @pytest.mark.req("S2-33")
    async def test_limits_of_rate_and_body_are_answered_with_429_and_413(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        ports = [backends[0].port]
        rate = RateLimit(requests=5, per=60)  # type: ignore[arg-type]
        await gateway.apply(
            GatewayState(
                (route("rate", ports, path="/rate", rate=rate), route("body", ports, path="/body", body_limit=1000))
            )
        )
        found = [(await self.ask("/rate"))[0] for _ in range(8)]
        assert found == [200] * 5 + [429] * 3, found
        status, answer, _ = await self.ask("/body", method="POST", data=b"x" * 1000)
        assert status == 200, (status, answer)
        assert (await self.ask("/body", method="POST", data=b"x" * 1001))[0] == 413

        async def unknown_length() -> AsyncIterator[bytes]:
            yield b"x" * 10

        assert (await self.ask("/body", method="POST", data=unknown_length()))[0] == 411
        assert (await self.ask("/body"))[0] == 200

    @pytest.mark.req("S2-33")
    async def test_https_uses_the_certificate_of_the_host_and_follows_its_renewal(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        ports = [backends[0].port]
        shop, other = CertificateKey("default", "shop-tls"), CertificateKey("default", "other-tls")
        first, second, third = (_certificate(each) for each in ("first", "second", "third"))
        routes = (route(ports=ports, certificate=shop),)
        await gateway.apply(GatewayState(routes, {shop: _pem(first)}))
        assert await self.chosen(secure=True, ssl=_trusting(first)) == ports[0]
        _, answer, _ = await self.ask(secure=True, ssl=_trusting(first))
        assert answer["headers"]["x-forwarded-proto"] == "https"
        status, _, headers = await self.ask("/a?b=c")
        assert (status, headers["Location"]) == (308, f"https://shop.test:{self.https_port}/a?b=c")
        await gateway.apply(GatewayState(routes, {shop: _pem(second)}))
        assert await self.chosen(secure=True, ssl=_trusting(second)) == ports[0]
        more = (*routes, route("other", ports, host="*.other.test", certificate=other, https_redirect=False))
        await gateway.apply(GatewayState(more, {shop: None, other: _pem(third)}))
        assert await self.chosen(secure=True, ssl=_trusting(third), host="www.other.test") == ports[0]
        assert await self.chosen(host="www.other.test") == ports[0]
        assert await self.chosen(secure=True, ssl=_trusting(second)) == ports[0]
        await gateway.apply(GatewayState((route(ports=ports), more[1]), {other: None}))
        assert await self.chosen() == ports[0]
        with pytest.raises(aiohttp.ClientConnectorError):
            await self.ask(secure=True, ssl=_trusting(second))

    async def test_challenges_are_answered_before_the_redirect_to_https(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        key, certificate = CertificateKey("default", "shop-tls"), _certificate("first")
        routes = (route(ports=[backends[0].port], certificate=key),)
        state = GatewayState(routes, {key: _pem(certificate)}, {ChallengeKey("shop.test", "tok-1_"): "tok-1_.answer"})
        await gateway.apply(state)
        path = "/.well-known/acme-challenge/tok-1_"
        assert (await self.ask(path))[:2] == (200, "tok-1_.answer")
        assert (await self.ask(path, host="other.test"))[0] == 404
        assert (await self.ask(path + "x"))[0] == 308
        await gateway.apply(GatewayState(routes, {key: None}))
        assert (await self.ask(path))[0] == 308

    @pytest.mark.req("S2-33")
    async def test_a_tcp_route_sends_all_connections_of_its_port(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        one, two, _ = (each.port for each in backends)
        spec: dict[str, Any] = {"protocol": "tcp", "port": self.tcp_port, "host": ""}
        web_route = route("web", [two])
        await gateway.apply(GatewayState((route("db", [one], **spec), web_route)))

        async def answer() -> int:
            async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.tcp_port}/") as found:
                return int((await found.json())["port"])

        assert await answer() == one
        await gateway.apply(GatewayState((route("db", [two], **spec), web_route)))
        assert await answer() == two
        assert (await gateway.apply(GatewayState((web_route,)))) == {}
        with pytest.raises(aiohttp.ClientError):
            await answer()

    async def test_a_tcp_route_for_a_port_in_use_is_refused_alone(
        self, gateway: Gateway, backends: list[Backend]
    ) -> None:
        one, two, _ = (each.port for each in backends)
        taken = route("taken", [one], protocol="tcp", port=one, host="")
        refused = await gateway.apply(GatewayState((taken, route("web", [two]))))
        assert list(refused) == [taken.key]
        assert await self.chosen() == two

    async def test_a_client_with_affinity_keeps_its_instance(self, gateway: Gateway, backends: list[Backend]) -> None:
        ports = [each.port for each in backends]
        await gateway.apply(GatewayState((route(ports=ports, affinity_seconds=60.0),)))
        assert len({await self.chosen() for _ in range(6)}) == 1

    async def test_the_counters_of_a_route_count_its_requests(self, gateway: Gateway, backends: list[Backend]) -> None:
        await gateway.apply(GatewayState((route(ports=[backends[0].port]), route("empty", host="empty.test"))))
        before = await gateway.traffic()
        for _ in range(3):
            await self.ask()
        await self.ask(host="empty.test")
        after = await gateway.traffic()
        shop, empty = RouteKey("default", "shop"), RouteKey("default", "empty")
        assert after[shop].requests - before[shop].requests == 3
        assert after[shop].errors == before[shop].errors
        assert after[empty].errors - before[empty].errors == 1

    async def test_text_of_users_stays_text(self, gateway: Gateway, backends: list[Backend]) -> None:
        one, two, _ = (each.port for each in backends)
        hostile = ["}", "{ always_true }", '"', "\\", "$HOME", "%[env(PATH)]", "#", "' or", "-f /etc/passwd", "--", "!"]
        routes = [route("all", [one], path="/%5B$env(x)'&;*")]
        routes += [
            route(f"r{number}", [two], host="hostile.test", headers={"X-Text": text})
            for number, text in enumerate(hostile)
        ]
        routes += [
            route("regex", [two], host="regex.test", path=r"/[\"'$#}{]+ ?".replace(" ", "x"), path_match="regex"),
            route(
                "to", host="to.test", path="/", path_match="exact", redirect=RouteRedirect(path="/%env(PATH)$HOME,'")
            ),
        ]
        assert await gateway.apply(GatewayState(tuple(routes))) == {}
        assert await self.chosen("/%5B$env(x)'&;*/deeper") == one
        for text in hostile:
            assert await self.chosen(host="hostile.test", headers={"X-Text": text}) == two
        assert (await self.ask(host="hostile.test", headers={"X-Text": "other"}))[0] == 404
        _, _, headers = await self.ask(host="to.test", headers={"X-Text": "%[env(PATH)]"})
        assert headers["Location"] == "http://to.test/%env(PATH)$HOME,'", headers


def _certificate(name: str) -> Pair:
    """Return a self-signed certificate, which clients trust by itself; its names are not checked."""
    return make_authority(name, now=time.time(), seconds=3600)


def _pem(pair: Pair) -> str:
    return pair.certificate + pair.key


def _trusting(pair: Pair) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=pair.certificate)
    context.check_hostname = False
    return context
