"""A gateway reads the certificates of routes, and nothing else of secrets."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trustme

from mandor.api.applied import AppliedReport
from mandor.api.auth import make_token
from mandor.api.heartbeat import GATEWAYS_MOST, LIVE_SECONDS, Heartbeats
from mandor.errors import TooMany
from mandor.lib.clock import ManualClock
from mandor.model.record import ALL_NAMESPACES
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api

APPLIED = "/v1/gateways/g1/applied"


async def prepared(api: Api) -> str:
    """Routes and secrets in the namespaces default and team; return the certificate in both."""
    issued = trustme.CA().issue_cert("shop.test")
    chain = issued.cert_chain_pems[0].bytes().decode()
    data = {"tls.crt": chain, "tls.key": issued.private_key_pem.bytes().decode(), "password": "hidden"}
    await api.store.commit(Put(_namespace("team")))
    session = await api.session(await api.token("admin", "user:ani"))
    objects: list[dict[str, Any]] = []
    for namespace in ("default", "team"):
        to = [{"service": "shop"}]
        objects += [
            {"kind": "secret", "name": "shop-tls", "namespace": namespace, "data": data},
            {"kind": "secret", "name": "password", "namespace": namespace, "value": "hidden"},
            {"kind": "route", "name": "shop", "namespace": namespace, "host": f"{namespace}.test", "to": to}
            | {"tls": "shop-tls"},
            {"kind": "route", "name": "plain", "namespace": namespace, "host": f"plain.{namespace}.test", "to": to}
            | {"tls": "password"},
        ]
    text = "\n---\n".join(map(json.dumps, objects))
    async with session.post("/v1/apply", data=text, headers={"content-type": "application/yaml"}) as answer:
        assert answer.status == 200, await answer.text()
    return chain


def _namespace(name: str) -> Any:
    from tests.api.conftest import default_namespace

    made = default_namespace()
    return type(made)(meta=type(made.meta)(name=name), spec=made.spec, status=made.status)


async def gateway(api: Api, *namespaces: str) -> str:
    """Return a token with the role `gateway`."""
    token, text = make_token("custom", "user:gateway", custom="gateway", namespaces=namespaces or (ALL_NAMESPACES,))
    await api.store.commit(Put(token))
    return text


async def post(api: Api, token: str, path: str, body: object = None) -> tuple[int, Any]:
    session = await api.session(token)
    given = {"json": body} if body is not None else {}
    async with session.post(path, **given) as answer:  # type: ignore[arg-type]
        return answer.status, await answer.json()


async def get(api: Api, token: str, path: str) -> tuple[int, Any]:
    session = await api.session(token)
    async with session.get(path) as answer:
        return answer.status, await answer.json()


def certificate(name: str, namespace: str) -> str:
    return f"/v1/routes/{name}/certificate?namespace={namespace}"


@pytest.mark.req("S2-33")
async def test_a_gateway_reads_the_certificate_of_a_route_and_the_read_is_audited(api: Api) -> None:
    chain, token = await prepared(api), await gateway(api)
    status, found = await post(api, token, certificate("shop", "team"))
    assert status == 200
    assert found["certificate"] == chain
    assert found["key"].startswith("-----BEGIN")
    assert "hidden" not in json.dumps(found)
    records = [each for each in (await api.store.list("audit")).items if "serve" in str(each)]
    assert len(records) == 1


async def test_a_gateway_reads_no_other_secret(api: Api) -> None:
    await prepared(api)
    token = await gateway(api)
    for path in ("/v1/secrets", "/v1/secrets/password", "/v1/secrets/shop-tls", "/v1/secrets/password/value"):
        assert (await get(api, token, path))[0] == 403, path
    status, found = await post(api, token, certificate("plain", "team"))
    assert (status, found["code"]) == (404, "not_found")
    assert (await post(api, token, certificate("missing", "team")))[0] == 404
    for path in ("/v1/nodes", "/v1/releases", "/v1/workloads", "/v1/tokens", "/v1/audits"):
        assert (await get(api, token, path))[0] == 403, path


async def test_a_gateway_of_one_namespace_reads_and_reports_only_there(api: Api) -> None:
    await prepared(api)
    token = await gateway(api, "team")
    assert (await post(api, token, certificate("shop", "team")))[0] == 200
    for name in ("shop", "missing"):
        assert (await post(api, token, certificate(name, "default")))[0] == 403
    assert (await post(api, token, APPLIED, {"namespaces": {"team": 3}}))[0] == 200
    assert (await post(api, token, APPLIED, {"namespaces": {"default": 3}}))[0] == 403
    _, routes = await get(api, token, "/v1/routes")
    assert {each["meta"]["namespace"] for each in routes["items"]} == {"team"}


@pytest.mark.parametrize("role", ["admin", "operator", "viewer"])
async def test_no_role_of_people_reads_the_certificate_of_a_route(api: Api, role: Any) -> None:
    await prepared(api)
    token = await api.token(role, f"user:{role}")
    assert (await post(api, token, certificate("shop", "team")))[0] == 403
    assert (await post(api, token, APPLIED, {"namespaces": {"team": 3}}))[0] == 403


async def test_gateways_delay_stops_only_while_they_report() -> None:
    clock = ManualClock()
    server = Heartbeats(MemoryStore(clock=clock), clock, "s1", "http://one:1")
    await clock.advance(100.0)
    server.gateway_applied("user:gateway/g1", {"default": 5})
    await server.applied("n1", AppliedReport(namespaces={"default": 9}))
    assert (await server.applied("n1", AppliedReport(asks={"default": 5}))).lowest == {"default": 5}
    server.gateway_applied("user:gateway/g1", {"default": 8})
    assert (await server.applied("n1", AppliedReport(asks={"default": 8}))).lowest == {"default": 8}
    await clock.advance(LIVE_SECONDS + 1)
    await server.tick()
    assert "gateway:user:gateway/g1" not in server._applied._by_node
    for number in range(GATEWAYS_MOST):
        server.gateway_applied(f"user:gateway/{number}", {})
    with pytest.raises(TooMany):
        server.gateway_applied("user:gateway/one-more", {})
