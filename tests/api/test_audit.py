"""Every change by a user is recorded with it, and can be read back by an admin."""

import pytest

from mandor.errors import Forbidden, MandorError
from mandor.store.base import Put
from mandor.testing.store import make_instance, make_node
from tests.api.conftest import Api

SPEC = {"groups": {"main": {"tasks": {"main": {"command": ["sleep", "1"], "env": {"PASSWORD": "hunter2"}}}}}}


async def test_audit_records_list_changes_in_order_and_without_values(api: Api) -> None:
    ani = await api.client(await api.token("operator", "user:ani"))
    admin = await api.client(await api.token("admin", "user:budi"))
    await api.store.commit(Put(make_node("n1")), Put(make_instance("web-0", node="n1")))
    await ani.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    await ani.call("PATCH", "/v1/workloads/web", dict, body={"spec": {"groups": {"main": {"replicas": 2}}}})
    await ani.request("POST", "/v1/apply", body=b"name: api\ncommand: [sleep]", content_type="application/yaml")
    await ani.call("DELETE", "/v1/instances/web-0", dict)
    await admin.call("PATCH", "/v1/nodes/n1", dict, body={"spec": {"cordoned": True}})
    made = await admin.call("POST", "/v1/tokens", dict, body={"role": "viewer", "identity": "citra"})
    await admin.call("DELETE", f"/v1/tokens/{made['name']}", dict)
    await ani.call("DELETE", "/v1/workloads/web", dict)
    answer = await admin.request("GET", "/v1/audits")
    assert b"hunter2" not in answer
    items = (await admin.call("GET", "/v1/audits", dict))["items"]
    told = [(each["spec"]["identity"], each["spec"]["verb"], each["spec"]["about"]) for each in items]
    assert told == [
        ("user:ani", "create", "workload default/web"),
        ("user:ani", "change", "workload default/web"),
        ("user:ani", "apply", "workload default/api"),
        ("user:ani", "delete", "instance default/web-0"),
        ("user:budi", "change", "node n1"),
        ("user:budi", "create", f"token {made['name']}"),
        ("user:budi", "delete", f"token {made['name']}"),
        ("user:ani", "delete", "workload default/web"),
    ]
    assert items[1]["spec"]["changed"] == ["spec.groups.main.replicas"]
    assert items[0]["spec"]["address"] == "127.0.0.1"
    assert items[0]["spec"]["at"] <= items[-1]["spec"]["at"]
    with pytest.raises(Forbidden):
        await ani.request("GET", "/v1/audits")


async def test_the_record_is_in_the_same_commit_as_the_change(dev: Api) -> None:
    client = await dev.client()
    made = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    (record,) = (await dev.store.list("audit")).items
    assert record.meta.version == made["meta"]["version"]


async def test_what_was_refused_or_changed_nothing_leaves_no_record(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    with pytest.raises(MandorError):
        await client.call("PUT", "/v1/workloads/web", dict, body={"spec": {}})
    assert len((await dev.store.list("audit")).items) == 1


async def test_audit_records_cannot_be_deleted_or_forged(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    (record,) = (await dev.store.list("audit")).items
    key = {"kind": "audit", "namespace": "", "name": record.meta.name, "version": record.meta.version}
    forged = {
        "kind": "audit",
        "meta": {"name": "x"},
        "spec": {"at": 1, "identity": "user:x", "verb": "delete", "about": "y"},
    }
    for write in ({"delete": key}, {"put": forged}):
        with pytest.raises(Forbidden):
            await client.call("POST", "/v1/commit", dict, body={"writes": [write]})
    with pytest.raises(MandorError):
        await client.request("DELETE", f"/v1/audits/{record.meta.name}")
    assert [item.meta.name for item in (await dev.store.list("audit")).items] == [record.meta.name]
