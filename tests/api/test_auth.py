"""Authentication: tokens, roles by namespace, and servers without tokens."""

import time

import aiohttp
import pytest

from mandor.client.aio import Client
from mandor.errors import Conflict, Forbidden, Invalid, MandorError, NotFound, Unauthenticated, Unsupported
from mandor.model.meta import Key
from mandor.model.workload import Workload
from mandor.store.base import Delete, Put
from mandor.testing.store import make_instance, make_node, make_workload
from tests.api.conftest import Api

SPEC = {"groups": {"main": {"tasks": {"main": {"command": ["sleep", "1"]}}}}}


# Tokens.


@pytest.mark.req("S2-12")
async def test_requests_without_a_token_are_refused(api: Api) -> None:
    client = await api.client()
    for path in ("/v1", "/v1/nodes", "/v1/watch", "/v1/snapshot", "/v1/tokens", "/v1/audits", "/v1/schema"):
        with pytest.raises(Unauthenticated) as caught:
            await client.request("GET", path)
        assert caught.value.hint


async def test_a_token_that_is_wrong_revoked_or_expired_is_refused(api: Api) -> None:
    good = await api.token("viewer", "user:ani")
    await (await api.client(good)).request("GET", "/v1/nodes")
    name = good.split("_")[1]
    expired = await api.token("viewer", "user:budi", expires_at=time.time() - 1)
    for text in (good[:-1] + ("0" if good[-1] != "0" else "1"), f"mdr_{name}_", "mdr__x", "hello", expired):
        with pytest.raises(Unauthenticated):
            await (await api.client(text)).request("GET", "/v1/nodes")
    admin = await api.client(await api.token("admin", "user:admin"))
    await admin.request("DELETE", f"/v1/tokens/{name}")
    with pytest.raises(Unauthenticated):
        await (await api.client(good)).request("GET", "/v1/nodes")


async def test_a_token_that_was_made_again_is_another_one(api: Api) -> None:
    first = await api.token("node", "node:n1")
    await (await api.client(first)).request("GET", "/v1")
    stored = await api.store.get(Key("token", "", "node.n1"))
    assert stored is not None
    await api.store.commit(Delete(stored.key, stored.meta.version))
    second = await api.token("node", "node:n1")
    for _ in range(2):
        await (await api.client(second)).request("GET", "/v1")
        with pytest.raises(Unauthenticated):
            await (await api.client(first)).request("GET", "/v1")


async def test_health_and_documentation_need_no_token(api: Api) -> None:
    client = await api.client()
    for path in ("/healthz", "/readyz", "/openapi.json", "/docs"):
        assert await client.request("GET", path)


async def test_a_created_token_works_and_its_secret_is_not_stored(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:admin"))
    made = await admin.call(
        "POST", "/v1/tokens", dict, body={"role": "operator", "identity": "ani", "namespaces": ["team"]}
    )
    assert made["identity"] == "user:ani"
    secret = made["token"].rpartition("_")[2]
    stored = await api.store.get(Key("token", "", made["name"]))
    assert secret not in str(stored)
    listed = await admin.request("GET", "/v1/tokens")
    assert made["name"].encode() in listed
    assert stored is not None
    for hidden in (secret, stored.spec.hash):
        assert hidden.encode() not in listed
        assert hidden.encode() not in await admin.request("GET", f"/v1/tokens/{made['name']}")
        assert hidden.encode() not in await admin.request("GET", "/v1/snapshot")
    ani = await api.client(made["token"])
    with pytest.raises(Forbidden):
        await ani.request("GET", "/v1/workloads", query={"namespace": "default"})
    assert await ani.call("GET", "/v1/workloads", dict, query={"namespace": "team"}) is not None


async def test_grants_cannot_exceed_the_rights_of_their_author(api: Api) -> None:
    local_admin = await api.client(await api.token("admin", "user:ani", ("team",)))
    await local_admin.call(
        "POST", "/v1/tokens", dict, body={"role": "viewer", "identity": "budi", "namespaces": ["team"]}
    )
    for body in (
        {"role": "viewer", "identity": "budi", "namespaces": ["other"]},
        {"role": "viewer", "identity": "budi"},
        {"role": "admin", "identity": "budi"},
        {"role": "join", "identity": "new"},
        {"role": "component", "identity": "scheduler"},
        {"role": "node", "identity": "n1"},
    ):
        with pytest.raises(Forbidden):
            await local_admin.call("POST", "/v1/tokens", dict, body=body)
    operator = await api.client(await api.token("operator", "user:op"))
    with pytest.raises(Forbidden):
        await operator.call("POST", "/v1/tokens", dict, body={"role": "viewer", "identity": "budi"})


@pytest.mark.parametrize(
    "body",
    [
        {"role": "king", "identity": "x"},
        {"role": "viewer", "identity": "node:n1"},
        {"role": "viewer", "identity": "No Name"},
        {"role": "viewer", "identity": ""},
        {"role": "viewer", "identity": "x", "namespaces": []},
        {"role": "viewer", "identity": "x", "expires_seconds": -1},
        {"role": "join", "identity": "x", "namespaces": ["team"]},
        {"role": "viewer", "identity": "x", "hash": "mine"},
    ],
)
async def test_a_token_that_makes_no_sense_is_not_made(dev: Api, body: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        await (await dev.client()).call("POST", "/v1/tokens", dict, body=body)
    assert list((await dev.store.list("token")).items) == []


# Roles.


async def attempt(client: Client, method: str, path: str, **more: object) -> str:
    """`ok`, or the code of the error."""
    try:
        await client.call(method, path, dict, **more)  # type: ignore[arg-type]
    except MandorError as error:
        return error.code
    return "ok"


@pytest.mark.req("S2-12")
async def test_a_viewer_reads_and_writes_nothing(api: Api) -> None:
    await api.store.commit(Put(make_workload("web")), Put(make_node("n1")), Put(make_instance("web-0", node="n1")))
    before = await api.store.get(Key("workload", "default", "web"))
    viewer = await api.client(await api.token("viewer", "user:ani"))
    for path in ("/v1/workloads/web", "/v1/nodes/n1", "/v1/instances", "/v1/events", "/v1/namespaces"):
        assert await attempt(viewer, "GET", path) == "ok"
    for path in ("/v1/tokens", "/v1/audits", "/v1/sessions"):
        assert await attempt(viewer, "GET", path) == "forbidden"
    body = {"spec": SPEC}
    assert await attempt(viewer, "PUT", "/v1/workloads/web", body=body) == "forbidden"
    assert await attempt(viewer, "PATCH", "/v1/workloads/web", body={"spec": {"priority": 1}}) == "forbidden"
    assert await attempt(viewer, "DELETE", "/v1/workloads/web") == "forbidden"
    assert await attempt(viewer, "DELETE", "/v1/instances/web-0") == "forbidden"
    assert await attempt(viewer, "PATCH", "/v1/nodes/n1", body={"spec": {"cordoned": True}}) == "forbidden"
    assert await attempt(viewer, "PUT", "/v1/namespaces/x", body={}) == "forbidden"
    assert await attempt(viewer, "POST", "/v1/nodes/n9/join", body={}) == "forbidden"
    manifest = {"files": [{"name": "a.yaml", "text": "name: web\ncommand: [sleep]"}]}
    assert await attempt(viewer, "POST", "/v1/apply", body=manifest) == "forbidden"
    assert await attempt(viewer, "POST", "/v1/delete", body=manifest) == "forbidden"
    assert await api.store.get(Key("workload", "default", "web")) == before


async def test_an_operator_of_one_namespace_has_no_show_elsewhere(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:admin"))
    for name in ("team", "other"):
        await admin.call("PUT", f"/v1/namespaces/{name}", dict, body={"spec": {"level": "privileged"}})
    await api.store.commit(Put(make_workload("db", namespace="other")), Put(make_node("n1")))
    ani = await api.client(await api.token("operator", "user:ani", ("team",)))
    mine, theirs = {"namespace": "team"}, {"namespace": "other"}
    assert await attempt(ani, "PUT", "/v1/workloads/web", query=mine, body={"spec": SPEC}) == "ok"
    assert await attempt(ani, "PUT", "/v1/workloads/web", query=theirs, body={"spec": SPEC}) == "forbidden"
    assert await attempt(ani, "GET", "/v1/workloads/db", query=theirs) == "forbidden"
    assert await attempt(ani, "DELETE", "/v1/workloads/db", query=theirs) == "forbidden"
    assert await attempt(ani, "GET", "/v1/workloads/web") == "forbidden"
    assert await attempt(ani, "GET", "/v1/nodes/n1") == "ok"
    assert await attempt(ani, "PATCH", "/v1/nodes/n1", body={"spec": {"cordoned": True}}) == "forbidden"
    assert await attempt(ani, "PUT", "/v1/namespaces/third", body={}) == "forbidden"
    manifest = {"files": [{"name": "a.yaml", "text": "name: db\nnamespace: other\ncommand: [sleep]"}]}
    assert await attempt(ani, "POST", "/v1/apply", body=manifest) == "forbidden"
    page = await ani.call("GET", "/v1/workloads", dict)
    assert [item["meta"]["name"] for item in page["items"]] == ["web"]
    names = await ani.call("GET", "/v1/namespaces", dict)
    assert [item["meta"]["name"] for item in names["items"]] == ["team"]
    everything = await ani.request("GET", "/v1/snapshot")
    assert b'"web"' in everything
    assert b'"db"' not in everything
    assert b'"token"' not in everything


# This machine without tokens: no web page gets in.


async def post(session: aiohttp.ClientSession, headers: dict[str, str], path: str = "/v1/workloads/web") -> int:
    async with session.put(path, data=b'{"spec": {}}', headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.1", "", "localhost.x"]
)
async def test_a_rebound_host_name_is_refused(dev: Api, host: str) -> None:
    session = await dev.session()
    for path in ("/v1/nodes", "/healthz", "/docs", "/openapi.json"):
        async with session.get(path, headers={"host": host}) as answer:
            assert answer.status == 403, (host, path)
            assert (await answer.json(content_type=None))["code"] == "forbidden"


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "127.5.5.5:1", "[::1]:8080", "LOCALHOST"])
async def test_every_name_of_this_machine_is_let_in(dev: Api, host: str) -> None:
    session = await dev.session()
    async with session.get("/v1/nodes", headers={"host": host}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:3000"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
async def test_a_foreign_web_page_is_refused(dev: Api, headers: dict[str, str]) -> None:
    session = await dev.session()
    async with session.get("/v1/nodes", headers=headers) as answer:
        assert answer.status == 403
        assert "access-control-allow-origin" not in answer.headers
    assert await post(session, {**headers, "content-type": "application/json"}) == 403
    async with session.post("/v1/nodes/n1/join", headers=headers) as answer:
        assert answer.status == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await session.ws_connect("/v1/instances/web-0/exec?command=sh", headers=headers)
    assert caught.value.status == 403
    assert await dev.store.get(Key("workload", "default", "web")) is None
    assert await dev.store.get(Key("node", "", "n1")) is None


async def test_the_servers_own_page_may_use_it(dev: Api) -> None:
    session = await dev.session()
    async with session.get("/v1/nodes", headers={"origin": dev.url, "sec-fetch-site": "same-origin"}) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/html"]
)
async def test_what_a_form_can_send_is_not_taken(dev: Api, kind: str) -> None:
    session = await dev.session()
    paths = {
        "PUT": ["/v1/workloads/web"],
        "PATCH": ["/v1/workloads/web"],
        "POST": ["/v1/apply", "/v1/delete", "/v1/commit", "/v1/tokens", "/v1/nodes/n1/heartbeat"],
    }
    for method, each in paths.items():
        for path in each:
            headers = {"content-type": kind} if kind else {}
            skip = ["content-type"] if not kind else []
            async with session.request(
                method, path, data=b"name: web\ncommand: [sleep]", headers=headers, skip_auto_headers=skip
            ) as answer:
                assert answer.status == 415, path
                assert (await answer.json(content_type=None))["hint"]
    assert [item.kind for item in (await dev.store.list(None)).items] == ["cluster", "namespace"]


async def test_a_token_works_where_none_is_needed_and_sets_the_identity(dev: Api) -> None:
    viewer = await dev.client(await dev.token("viewer", "user:ani"))
    await viewer.request("GET", "/v1/nodes")
    assert await attempt(viewer, "PUT", "/v1/workloads/web", body={"spec": SPEC}) == "forbidden"


async def test_a_namespaces_rules_bind_its_workloads(dev: Api) -> None:
    client = await dev.client()
    rules = {"engines": ["process"], "users": ["nobody"], "priority_most": 10}
    await client.call("PUT", "/v1/namespaces/team", dict, body={"spec": rules})

    async def put(**spec: object) -> str:
        task = {"command": ["sleep", "1"], "security": {"user": spec.pop("user", "nobody")}}
        group = {"engine": spec.pop("engine", ["process"]), "tasks": {"main": task}}
        body = {"spec": {"groups": {"main": group}, **spec}}
        return await attempt(client, "PUT", "/v1/workloads/web", query={"namespace": "team"}, body=body)

    assert await put(user="root") == "forbidden"
    assert await put(engine=["fake"]) == "forbidden"
    assert await put(priority=11) == "forbidden"
    assert await dev.store.get(Key("workload", "team", "web")) is None
    assert await put(priority=10) == "ok"
    assert await put(user=None) == "ok"
    assert await put(engine=[]) == "ok"
    made = await dev.store.get(Key("workload", "team", "web"))
    assert isinstance(made, Workload)
    assert made.spec.groups["main"].engine == ("process",)


async def test_a_workload_in_a_namespace_that_does_not_exist_is_refused_with_a_guess(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/namespaces/team", dict, body={})
    with pytest.raises(Invalid) as caught:
        await client.call("PUT", "/v1/workloads/web", dict, query={"namespace": "taem"}, body={"spec": SPEC})
    assert "`team`" in (caught.value.hint or "")


async def test_a_fast_writer_is_slowed_down(start_api: object) -> None:
    dev: Api = await start_api(tokens_required=False, writes_per_second=1.0, writes_burst=3)  # type: ignore[operator]
    session = await dev.session()
    told = []
    for number in range(5):
        async with session.put(f"/v1/workloads/w{number}", json={"spec": SPEC}) as answer:
            told.append((answer.status, answer.headers.get("retry-after")))
    assert told[:3] == [(200, None)] * 3
    assert (429, "1") in told[3:]


async def test_a_deleted_node_frees_its_name(dev: Api) -> None:
    client = await dev.client()
    first = await client.call("POST", "/v1/nodes/n1/join", dict, body={})
    with pytest.raises(Conflict):
        await client.call("POST", "/v1/nodes/n1/join", dict, body={})
    await client.call("DELETE", "/v1/nodes/n1", dict)
    with pytest.raises(Unauthenticated):
        await (await dev.client(first["credential"])).request("GET", "/v1/nodes/n1")
    again = await client.call("POST", "/v1/nodes/n1/join", dict, body={})
    assert again["credential"] != first["credential"]


async def test_a_rotated_token_stays_valid_for_the_overlap_and_then_ends(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    wanted = {"role": "viewer", "identity": "budi", "expires_seconds": 900}
    made = await admin.call("POST", "/v1/tokens", dict, body=wanted)
    after = await admin.call("POST", f"/v1/tokens/{made['name']}/rotate", dict, body={"overlap_seconds": 600})
    assert (after["role"], after["identity"], after["namespaces"]) == ("viewer", "user:budi", ["*"])
    assert after["expires_at"] >= made["expires_at"]
    for text in (made["token"], after["token"]):
        await (await api.client(text)).call("GET", "/v1/nodes", dict)
    old = await admin.call("GET", f"/v1/tokens/{made['name']}", dict)
    assert old["spec"]["expires_at"] < made["expires_at"]

    await admin.call("POST", f"/v1/tokens/{after['name']}/rotate", dict, body={"overlap_seconds": 0})
    with pytest.raises(Unauthenticated, match="expired"):
        await (await api.client(after["token"])).call("GET", "/v1/nodes", dict)
    with pytest.raises(NotFound):
        await admin.call("POST", "/v1/tokens/nobody/rotate", dict, body={})
    viewer = await api.client(made["token"])
    with pytest.raises(Forbidden):
        await viewer.call("POST", f"/v1/tokens/{made['name']}/rotate", dict, body={})
    joiner = await api.client(await api.token("join", "join:first"))
    await joiner.call("POST", "/v1/nodes/n1/join", dict, body={})
    with pytest.raises(Unsupported, match="is the credential of a node"):
        await admin.call("POST", "/v1/tokens/node.n1/rotate", dict, body={})
