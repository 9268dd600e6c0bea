"""Secrets: sealed in the store, never returned to users, and opened for nodes whose tasks refer to them."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.client.aio import Client
from mandor.errors import Forbidden, Invalid, NotFound
from mandor.model.codec import encode
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.manifest import load_manifests
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.secret import Secret
from mandor.model.workload import Workload, make_release
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.api.test_apply import send as send_all

SECRET = "kind: secret\nname: db\ndata:\n  user: shop\n  password: hunter2\n"
WEB = "name: web\ncommand: [run]\nsecrets: {PASSWORD: db/password}\n"


async def send(client: Client, text: str) -> dict[str, Any]:
    (result,) = (await send_all(client, text))["results"]
    assert isinstance(result, dict)
    return result


async def stored(api: Api, name: str = "db") -> Secret:
    found = await api.store.get(Key("secret", "default", name))
    assert isinstance(found, Secret)
    return found


async def run_on(api: Api, node: str, manifest: str = WEB) -> None:
    workload = load_manifests(manifest)[0].object
    assert isinstance(workload, Workload)
    instance = Instance(
        meta=Meta(name="web-0", namespace="default"),
        spec=InstanceSpec(workload="web", release="web.1", index=0, node=node),
        status=InstanceStatus(phase=Phase.RESERVED),
    )
    await api.store.commit(Put(workload), Put(make_release(workload, 1)), Put(instance))


async def test_what_is_stored_cannot_be_read(dev: Api) -> None:
    client = await dev.client()
    assert (await send(client, SECRET))["action"] == "created"
    found = await stored(dev)
    assert set(found.spec.sealed) == {"user", "password"}
    assert b"hunter2" not in encode(found)
    for each in (await dev.store.list(None)).items:
        assert b"hunter2" not in encode(each), each.key


async def test_values_are_never_shown(dev: Api) -> None:
    client = await dev.client()
    result = await send(client, SECRET)
    assert {each["path"]: each.get("after") for each in result["changes"]} == {
        "spec.sealed.user": "(hidden)",
        "spec.sealed.password": "(hidden)",
    }
    one = await client.call("GET", "/v1/secrets/db", dict[str, Any])
    assert one["spec"] == {"sealed": {"user": "", "password": ""}}
    listed = await client.call("GET", "/v1/secrets", dict[str, Any])
    assert listed["items"][0]["spec"] == one["spec"]
    body = {"kind": "secret", "meta": {"name": "x"}, "spec": {"value": "hunter2"}}
    assert (await client.call("PUT", "/v1/secrets/x", dict[str, Any], body=body))["spec"] == {"sealed": {"value": ""}}


async def test_the_same_values_change_nothing_and_another_one_only_itself(dev: Api) -> None:
    client = await dev.client()
    await send(client, SECRET)
    before = (await stored(dev)).spec.sealed
    assert (await send(client, SECRET))["action"] == "unchanged"
    result = await send(client, SECRET.replace("hunter2", "hunter3"))
    assert [each["path"] for each in result["changes"]] == ["spec.sealed.password"]
    after = (await stored(dev)).spec.sealed
    assert after["user"] == before["user"]
    assert after["password"] != before["password"]


async def test_a_node_gets_the_secrets_that_its_instances_name_and_no_others(start_api: Any) -> None:
    api: Api = await start_api()
    admin = await api.client(await api.token("admin", "user:a"))
    await send(admin, SECRET)
    await send(admin, "kind: secret\nname: other\nvalue: x\n")
    await run_on(api, "n1")
    mine = await api.client(await api.token("node", "node:n1"))
    found = await mine.call("GET", "/v1/secrets/db", dict[str, Any])
    assert found["spec"] == {"data": {"user": "shop", "password": "hunter2"}}
    with pytest.raises(NotFound):
        await mine.call("GET", "/v1/secrets/other", dict[str, Any])
    others = await api.client(await api.token("node", "node:n2"))
    with pytest.raises(NotFound):
        await others.call("GET", "/v1/secrets/db", dict[str, Any])
    with pytest.raises(Forbidden):
        await mine.call("PUT", "/v1/secrets/db", dict[str, Any], body={"meta": {"name": "db"}, "spec": {"value": "x"}})


async def test_a_viewer_writes_none_and_another_namespace_sees_none(start_api: Any) -> None:
    api: Api = await start_api()
    viewer = await api.client(await api.token("viewer", "user:v"))
    with pytest.raises(Forbidden):
        await send(viewer, SECRET)
    await send(await api.client(await api.token("operator", "user:o")), SECRET)
    elsewhere = await api.client(await api.token("operator", "user:e", namespaces=("team",)))
    with pytest.raises(Forbidden):
        await elsewhere.call("GET", "/v1/secrets/db", dict[str, Any])


async def test_an_apply_warns_of_secrets_that_do_not_exist_yet(dev: Api) -> None:
    client = await dev.client()
    result = await send(client, WEB)
    assert result["warnings"] == ["there is no secret db yet; instances that need it wait until it exists"]
    await send(client, SECRET)
    assert not (await send(client, WEB + "labels: {a: b}\n")).get("warnings")


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("kind: secret\nname: db\n", 1, "needs a `value`"),
        ("kind: secret\nname: db\nvalue: a\ndata: {b: c}\n", 3, "not both"),
        ("kind: secret\nname: db\ndata: {'a b': c}\n", 3, "is not a valid key"),
        ("kind: secret\nname: db\nsealed: {a: b}\n", 3, "written by the server"),
        ("kind: secret\nname: db\nvalue: a\nsealed: {a: b}\n", 4, "written by the server"),
        ("name: web\ncommand: [run]\nsecrets: {A: 'a b'}\n", 3, "name of a secret"),
        ("name: web\ncommand: [run]\nenv: {A: b}\nsecrets: {A: db}\n", 4, "in both `env` and `secrets`"),
        ("name: web\ncommand: [run]\nfiles: [{path: a, content: b, secret: db}]\n", 3, "not both"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_its_line(dev: Api, text: str, line: int, word: str) -> None:
    with pytest.raises(Invalid, match=word) as refused:
        await send(await dev.client(), text)
    assert refused.value.facts["line"] == line
