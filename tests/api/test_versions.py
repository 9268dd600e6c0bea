"""Clients and objects of other versions: what this server does not know is kept, and refused in words."""

import json
from typing import Any

import pytest

from mandor.errors import Forbidden, Invalid
from mandor.model.codec import decode, encode
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.store.base import Put, Store
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance, make_node, make_workload
from tests.api.conftest import Api


async def newer(store: Store, value: Any, **unknown: Any) -> dict[str, Any]:
    """Stored as a newer server would, with more in its spec and status."""
    plain = json.loads(encode(value))
    plain.setdefault("spec", {}).update(unknown)
    plain.setdefault("status", {})["mood"] = "good"
    await store.commit(Put(decode(json.dumps(plain).encode())))
    return await stored(store, value.key)


async def stored(store: Store, key: Key) -> dict[str, Any]:
    found = await store.get(key)
    assert found is not None
    return dict(json.loads(encode(found)))


@pytest.mark.req("S0-19")
async def test_apply_put_and_patch_keep_what_a_newer_server_wrote(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    workload = make_workload("web")
    await newer(api.store, workload, colour="red")
    manifest = b"name: web\ncommand: [sleep, '2']\n"
    await admin.request("POST", "/v1/apply", body=manifest, content_type="application/yaml")
    found = await stored(api.store, workload.key)
    assert found["spec"]["groups"]["main"]["tasks"]["main"]["command"] == ["sleep", "2"]
    assert (found["spec"]["colour"], found["status"]["mood"]) == ("red", "good")

    await newer(api.store, make_node("n1"), colour="red")
    await admin.call("PATCH", "/v1/nodes/n1", dict, body={"spec": {"cordoned": True}})
    await admin.call("PUT", "/v1/nodes/n1", dict, body={"spec": {"pool": "gpu"}})
    read = await admin.call("GET", "/v1/nodes/n1", dict)
    assert read["spec"] == {"pool": "gpu", "colour": "red"}
    # Whoever reads, changes and writes the whole need not know it either.
    again = await admin.call("PUT", "/v1/nodes/n1", dict, body=read | {"spec": read["spec"] | {"cordoned": True}})
    assert again["spec"] == {"pool": "gpu", "colour": "red", "cordoned": True}
    assert again["status"]["mood"] == "good"


async def test_what_this_server_does_not_know_is_refused_not_dropped(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    await newer(api.store, make_node("n1"), colour="red")
    for spec in ({"colour": "blue"}, {"colour": "red", "shade": 1}):
        with pytest.raises(Invalid, match="unknown field"):
            await admin.call("PUT", "/v1/nodes/n1", dict, body={"spec": spec})
        with pytest.raises(Invalid, match="unknown field"):
            await admin.call("PUT", "/v1/nodes/n2", dict, body={"spec": spec})
    with pytest.raises(Invalid, match="unknown field"):
        await admin.call("PATCH", "/v1/nodes/n1", dict, body={"spec": {"shade": 1}})
    manifest = b"name: web\ncommand: [sleep, '2']\nshade: 1\n"
    with pytest.raises(Invalid, match="shade"):
        await admin.request("POST", "/v1/apply", body=manifest, content_type="application/yaml")
    assert (await stored(api.store, Key("node", "", "n1")))["spec"] == {"colour": "red"}


@pytest.mark.req("S0-19")
async def test_an_agent_that_does_not_know_a_field_reports_without_losing_it(api: Api) -> None:
    await api.store.commit(Put(make_node("n1")))
    instance = make_instance("web-0", node="n1").changed(status=InstanceStatus(phase=Phase.STARTING))
    await newer(api.store, instance, colour="red")
    async with RemoteStore(await api.client(await api.token("node", "node:n1"))) as remote:
        read = await remote.get(instance.key)
        assert isinstance(read, Instance)
        await remote.commit(Put(read.reported(InstanceStatus(phase=Phase.RUNNING, ready=True))))
        found = await stored(api.store, instance.key)
        assert (found["spec"]["colour"], found["status"]["mood"]) == ("red", "good")
        assert found["status"]["phase"] == "Running"

        # A newer agent may not slip in what this server cannot check.
        read = await remote.get(instance.key)
        assert read is not None
        plain = json.loads(encode(read))
        plain["spec"]["colour"] = "blue"
        with pytest.raises(Invalid, match=r"does not know spec.colour, status.mood"):
            await remote.commit(Put(decode(json.dumps(plain).encode())))
        more = json.dumps({"kind": "node", "meta": {"name": "n9"}, "spec": {"new": 1}})
        with pytest.raises((Invalid, Forbidden)):
            await remote.commit(Put(decode(more.encode())))


async def test_unknown_fields_that_can_be_secrets_are_never_shown(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    await admin.call("PUT", "/v1/secrets/db", dict, query={"namespace": "default"}, body={"spec": {"value": "pass"}})
    before = await api.store.get(Key("secret", "default", "db"))
    assert before is not None
    plain = json.loads(encode(before))
    plain["spec"]["recovery"] = "hunter2"
    await api.store.commit(Put(decode(json.dumps(plain).encode())))
    shown = await admin.request("GET", "/v1/secrets/db", query={"namespace": "default"})
    listed = await admin.request("GET", "/v1/secrets")
    assert b"hunter2" not in shown + listed
    await admin.call("PUT", "/v1/secrets/db", dict, query={"namespace": "default"}, body={"spec": {"value": "new"}})
    assert (await stored(api.store, before.key))["spec"]["recovery"] == "hunter2"


@pytest.mark.req("S0-19")
async def test_an_object_of_a_later_schema_can_be_read_and_deleted_but_not_written(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    plain = json.loads(encode(make_node("n1")))
    plain["meta"]["schema"] = 2
    # A newer server's commit, which no store of this version would take.
    index = api.store.index  # type: ignore[attr-defined]
    value = decode(json.dumps(plain).encode()).stamped(version=index.revision + 1, uid="u1")
    index.load([value])
    assert (await admin.call("GET", "/v1/nodes/n1", dict))["meta"]["schema"] == 2
    with pytest.raises(Invalid, match="node n1 has schema version 2, but this version of mandor writes 1"):
        await admin.call("PATCH", "/v1/nodes/n1", dict, body={"spec": {"cordoned": True}})
    assert isinstance(await api.store.get(Key("node", "", "n1")), Node)
    await admin.request("DELETE", "/v1/nodes/n1")
    assert await api.store.get(Key("node", "", "n1")) is None


@pytest.mark.req("S0-19")
async def test_a_client_of_a_distant_version_is_refused_and_a_newer_one_gets_a_hint(api: Api) -> None:
    session = await api.session(await api.token("admin", "user:ani"))
    for version, status in (("0.1.7", 200), ("0.2.0", 200), ("0.3.0", 422), ("9.0.0", 422), ("?", 422)):
        async with session.get("/v1/nodes", headers={"x-mandor-version": version}) as answer:
            assert answer.status == status, version
            if status == 422:
                assert "they may differ by 1 minor version" in (await answer.json())["detail"]
    body = {"spec": {"colour": "red"}}
    async with session.put("/v1/nodes/n1", json=body, headers={"x-mandor-version": "0.2.0"}) as answer:
        problem = await answer.json()
        assert (answer.status, problem["code"]) == (400, "invalid")
        assert "the client (0.2.0) is newer than this server" in problem["hint"]
    # Who is a node already is not given up for its version; it cannot become one.
    await api.store.commit(Put(make_node("n1")))
    node = await api.session(await api.token("node", "node:n1"))
    async with node.post("/v1/nodes/n1/heartbeat", json={}, headers={"x-mandor-version": "0.9.0"}) as answer:
        assert answer.status == 200
    async with node.post("/v1/nodes/n1/join", json={}, headers={"x-mandor-version": "0.9.0"}) as answer:
        assert answer.status == 422
