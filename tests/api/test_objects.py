"""Objects over HTTP: list, get, put, patch, delete, with versions, selectors and pages."""

from typing import Any

import pytest

from mandor.errors import Conflict, Forbidden, Invalid, NotFound, Unsupported
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.model.workload import Workload, WorkloadStatus
from mandor.store.base import Delete, Put
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance, make_node, make_workload
from tests.api.conftest import Api

SPEC = {"groups": {"main": {"tasks": {"main": {"command": ["sleep", "1"]}}}}}


@pytest.mark.req("S2-10", "S2-12")
async def test_a_workload_that_was_put_can_be_read_listed_and_deleted(dev: Api) -> None:
    client = await dev.client()
    made = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC, "meta": {"labels": {"app": "web"}}})
    assert made["kind"] == "workload"
    assert made["meta"]["namespace"] == "default"
    assert made["meta"]["version"] > 0
    assert made["status"]["phase"] == "Pending"
    assert await client.call("GET", "/v1/workloads/web", dict) == made
    page = await client.call("GET", "/v1/workloads", dict)
    assert page["items"] == [made]
    assert page["revision"] >= made["meta"]["version"]
    await client.call("DELETE", "/v1/workloads/web", dict)
    with pytest.raises(NotFound) as caught:
        await client.call("GET", "/v1/workloads/web", dict)
    assert caught.value.hint
    assert await dev.store.get(Key("workload", "default", "web")) is None


async def test_putting_the_same_again_changes_nothing(dev: Api) -> None:
    client = await dev.client()
    first = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    again = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    assert again["meta"]["version"] == first["meta"]["version"]


async def test_a_put_of_an_old_version_is_a_conflict_that_reports_the_version_that_won(dev: Api) -> None:
    client = await dev.client()
    old = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    new = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC | {"priority": 3}})
    with pytest.raises(Conflict) as caught:
        await client.call("PUT", "/v1/workloads/web", dict, body=old | {"spec": SPEC | {"priority": 9}})
    assert caught.value.facts["version"] == new["meta"]["version"]
    assert (await client.call("GET", "/v1/workloads/web", dict))["spec"]["priority"] == 3


async def test_a_put_with_the_present_version_goes_through(dev: Api) -> None:
    client = await dev.client()
    old = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    new = await client.call("PUT", "/v1/workloads/web", dict, body=old | {"spec": SPEC | {"priority": 9}})
    assert new["spec"]["priority"] == 9
    assert new["meta"]["uid"] == old["meta"]["uid"]


async def test_version_zero_in_the_query_means_it_must_be_new(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/workloads/web", dict, query={"version": 0}, body={"spec": SPEC})
    with pytest.raises(Conflict):
        await client.call("PUT", "/v1/workloads/web", dict, query={"version": 0}, body={"spec": SPEC})


async def test_a_deletion_of_an_old_version_is_a_conflict(dev: Api) -> None:
    client = await dev.client()
    old = await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC | {"priority": 3}})
    with pytest.raises(Conflict):
        await client.call("DELETE", "/v1/workloads/web", dict, query={"version": old["meta"]["version"]})
    assert await dev.store.get(Key("workload", "default", "web")) is not None


async def test_a_user_cannot_write_status(dev: Api) -> None:
    """Put and patch keep what is stored."""
    client = await dev.client()
    made = await client.call(
        "PUT", "/v1/workloads/web", dict, body={"spec": SPEC, "status": {"phase": "Running", "running": 7}}
    )
    assert made["status"] == {"phase": "Pending"}
    stored = await dev.store.get(Key("workload", "default", "web"))
    assert isinstance(stored, Workload)
    await dev.store.commit(Put(stored.changed(status=WorkloadStatus(phase="Running", running=1))))
    await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC | {"priority": 1}, "status": {"phase": "x"}})
    with pytest.raises(Invalid):
        await client.call("PATCH", "/v1/workloads/web", dict, body={"status": {"phase": "Failed"}})
    found = await dev.store.get(Key("workload", "default", "web"))
    assert isinstance(found, Workload)
    assert found.status == WorkloadStatus(phase="Running", running=1)
    assert found.spec.priority == 1


async def test_a_merge_patch_sets_keeps_and_takes_away(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC, "meta": {"labels": {"a": "1", "b": "2"}}})
    patch = {"meta": {"labels": {"a": None, "c": "3"}}, "spec": {"groups": {"main": {"replicas": 5}}}}
    changed = await client.call("PATCH", "/v1/workloads/web", dict, body=patch)
    assert changed["meta"]["labels"] == {"b": "2", "c": "3"}
    assert changed["spec"]["groups"]["main"]["replicas"] == 5
    assert changed["spec"]["groups"]["main"]["tasks"] == SPEC["groups"]["main"]["tasks"]


async def test_a_patch_of_something_else_is_refused(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    for patch in ({"meta": {"name": "other"}}, {"kind": "node"}, {"meta": None}, {"spec": None}, [1]):
        with pytest.raises(Invalid):
            await client.call("PATCH", "/v1/workloads/web", dict, body=patch)


async def test_a_node_is_cordoned_by_a_patch(dev: Api) -> None:
    await dev.store.commit(Put(make_node("n1")))
    client = await dev.client()
    assert (await client.call("PATCH", "/v1/nodes/n1", dict, body={"spec": {"cordoned": True}}))["spec"]["cordoned"]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("", ["a", "b", "c"]),
        ("tier=front", ["a", "b"]),
        ("tier=front,zone=x", ["a"]),
        ("tier!=front", ["c"]),
        ("zone in (x, z)", ["a", "c"]),
        ("zone notin (x)", ["b", "c"]),
        ("gpu", ["c"]),
        ("!gpu", ["a", "b"]),
        ("!gpu,zone=y", ["b"]),
    ],
)
async def test_a_selector_picks_by_label(dev: Api, selector: str, names: list[str]) -> None:
    await dev.store.commit(
        Put(make_workload("a", tier="front", zone="x")),
        Put(make_workload("b", tier="front", zone="y")),
        Put(make_workload("c", tier="back", zone="z", gpu="1")),
    )
    client = await dev.client()
    page = await client.call("GET", "/v1/workloads", dict, query={"labels": selector})
    assert [item["meta"]["name"] for item in page["items"]] == names


async def test_instances_are_selected_by_the_labels_of_their_workload(dev: Api) -> None:
    await dev.store.commit(
        Put(make_workload("web", app="shop")),
        Put(make_workload("api", app="other")),
        Put(make_instance("web-0")),
        Put(make_instance("api-0")),
    )
    client = await dev.client()
    page = await client.call("GET", "/v1/instances", dict, query={"labels": "app=shop"})
    assert [item["meta"]["name"] for item in page["items"]] == ["web-0"]


async def test_pages_hold_every_object_once_whatever_is_deleted_in_between(dev: Api) -> None:
    for number in range(25):
        await dev.store.commit(Put(make_workload(f"w{number:02}", namespace="a" if number % 2 else "b")))
    client = await dev.client()
    names: list[str] = []
    after = ""
    for turn in range(10):
        page = await client.call("GET", "/v1/workloads", dict, query={"limit": 7, "after": after})
        names += [f"{item['meta']['namespace']}/{item['meta']['name']}" for item in page["items"]]
        if turn == 0:
            # The very object that the page ended with goes away.
            namespace, _, name = page["after"].partition("/")
            found = await dev.store.get(Key("workload", namespace, name))
            assert found is not None
            await dev.store.commit(Delete(found.key, found.meta.version))
        after = page.get("after", "")
        if not after:
            break
    assert len(names) == 25
    assert names == sorted(names)


async def test_deleting_an_instance_is_an_order_to_stop(dev: Api) -> None:
    await dev.store.commit(Put(make_instance("web-0", node="n1")))
    client = await dev.client()
    for _ in range(2):
        await client.call("DELETE", "/v1/instances/web-0", dict)
    found = await dev.store.get(Key("instance", "default", "web-0"))
    assert isinstance(found, Instance)
    assert found.spec.stop is not None
    assert found.spec.stop.reason == "deleted by user"
    assert found.phase is Phase.PENDING


async def test_users_cannot_create_instances(dev: Api) -> None:
    client = await dev.client()
    instance = {
        "kind": "instance",
        "meta": {"name": "web-0", "namespace": "default"},
        "spec": {"workload": "w", "release": "r", "index": 0},
    }
    with pytest.raises(Unsupported):
        await client.call("PUT", "/v1/instances/web-0", dict, body=instance)
    with pytest.raises(Forbidden) as caught:
        await client.call("POST", "/v1/commit", dict, body={"writes": [{"put": instance}]})
    assert "apply or scale the workload" in (caught.value.hint or "")
    assert await dev.store.get(Key("instance", "default", "web-0")) is None


async def test_a_namespace_that_holds_something_is_not_deleted(dev: Api) -> None:
    client = await dev.client()
    await client.call("PUT", "/v1/namespaces/team", dict, body={"spec": {"level": "privileged"}})
    await client.call("PUT", "/v1/workloads/web", dict, query={"namespace": "team"}, body={"spec": SPEC})
    with pytest.raises(Conflict) as caught:
        await client.call("DELETE", "/v1/namespaces/team", dict)
    assert "mandor delete workload" in (caught.value.hint or "")
    await client.call("DELETE", "/v1/workloads/web", dict, query={"namespace": "team"})
    await client.call("DELETE", "/v1/namespaces/team", dict)
    assert await dev.store.get(Key("namespace", "", "team")) is None


async def test_an_unknown_path_is_not_found_with_a_suggestion(dev: Api) -> None:
    client = await dev.client()
    with pytest.raises(NotFound) as caught:
        await client.call("GET", "/v1/workload", dict)
    assert "workloads" in (caught.value.hint or "")


async def test_an_unsupported_method_is_405_with_the_supported_ones(dev: Api) -> None:
    session = await dev.session()
    async with session.post("/v1/events", json={}) as answer:
        assert answer.status == 405
        assert answer.headers["allow"] == "GET"
        assert (await answer.json(content_type=None))["code"] == "unsupported"


# Several at once.


async def test_several_objects_are_read_by_one_question(dev: Api) -> None:
    await dev.store.commit(Put(make_node("n1")), Put(make_workload("web")), Put(make_workload("db", namespace="team")))
    store = RemoteStore(await dev.client())
    keys = [
        Key("workload", "team", "db"),
        Key("workload", "default", "db"),
        Key("node", "", "n1"),
        Key("workload", "default", "web"),
    ]
    assert await store.get_all(keys) == [await dev.store.get(key) for key in keys]
    many = [Key("workload", "default", f"{'x' * 200}{number}") for number in range(100)] + keys
    assert [each is not None for each in await store.get_all(many)] == [False] * 100 + [True, False, True, True]


async def test_a_node_reads_several_only_as_it_reads_each(api: Api) -> None:
    await api.store.commit(
        Put(make_node("n1")),
        Put(make_workload("web")),
        Put(make_workload("db")),
        Put(make_instance("web-0", node="n1")),
        Put(make_instance("db-0", node="n2")),
    )
    store = RemoteStore(await api.client(await api.token("node", "node:n1")))
    web, db = Key("workload", "default", "web"), Key("workload", "default", "db")
    assert [each is not None for each in await store.get_all([web, db])] == [True, False]
    assert [each is not None for each in await store.get_all([web, Key("instance", "default", "db-0")])] == [
        True,
        False,
    ]
    for refused in (Key("quota", "default", "q"),):
        with pytest.raises(Forbidden):
            await store.get_all([web, refused])


@pytest.mark.parametrize("key", ["workload/web", "workload//web", "node/default/n1", "wrkload/default/web", "x"])
async def test_what_is_no_key_is_refused(dev: Api, key: str) -> None:
    with pytest.raises(Invalid) as caught:
        await (await dev.client()).request("GET", "/v1/objects", query={"key": key})
    assert caught.value.hint


async def test_a_server_that_cannot_answer_several_is_asked_for_each(dev: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await dev.store.commit(Put(make_node("n1")), Put(make_node("n2")))
    client = await dev.client()
    asked, request = list[str](), client.request

    async def older(method: str, path: str, **more: Any) -> bytes:
        asked.append(path)
        if path.startswith("/v1/objects"):
            raise NotFound("there is nothing at /v1/objects")
        return await request(method, path, **more)

    monkeypatch.setattr(client, "request", older)
    found = await RemoteStore(client).get_all([Key("node", "", "n1"), Key("node", "", "n3")])
    assert [each and each.meta.name for each in found] == ["n1", None]
    assert asked[1:] == ["/v1/nodes/n1", "/v1/nodes/n3"]
