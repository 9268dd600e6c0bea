"""User ids of namespaces: no two namespaces share ids, also when they are created concurrently."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mandor.agent.launch import NOBODY, confined, user_of
from mandor.api.user_range import ensure_users, with_users
from mandor.errors import Conflict, Forbidden, NotFound, Unavailable
from mandor.model.allowance import Allowance
from mandor.model.meta import Key, Meta
from mandor.model.record import FIRST_NAMESPACE_USER, USERS_PER_NAMESPACE, Namespace, NamespaceSpec
from mandor.model.task import Security, Task
from mandor.model.user_range import MAPPED_USERS, RANGES, free_range, mapped_user
from mandor.roots.bootstrap import ensure_cluster
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_instance, make_node
from tests.api.conftest import Api, StartApi


def test_ranges_are_given_in_turn_and_a_freed_one_comes_last() -> None:
    first, start = free_range((), 0)
    second, start = free_range({first}, start)
    assert (first, second) == (FIRST_NAMESPACE_USER, FIRST_NAMESPACE_USER + USERS_PER_NAMESPACE)
    third, start = free_range({second}, start)
    assert third == second + USERS_PER_NAMESPACE, "the first one is free, and not used again at once"
    last = FIRST_NAMESPACE_USER + (RANGES - 1) * USERS_PER_NAMESPACE
    assert last + USERS_PER_NAMESPACE <= 2**31
    assert free_range({last}, last)[0] == FIRST_NAMESPACE_USER
    every = {FIRST_NAMESPACE_USER + number * USERS_PER_NAMESPACE for number in range(RANGES)}
    with pytest.raises(Unavailable):
        free_range(every, 0)


def test_where_ids_are_few_namespaces_still_have_different_ones() -> None:
    found = {mapped_user(FIRST_NAMESPACE_USER + number * USERS_PER_NAMESPACE) for number in range(RANGES)}
    assert len(found) == RANGES
    assert 0 < min(found) <= max(found) < MAPPED_USERS
    assert mapped_user(1000) == 1000


async def test_namespaces_made_at_the_same_time_by_several_servers_have_ids_of_their_own(start_api: StartApi) -> None:
    async with MemoryStore() as store:
        servers = [await start_api(store=store, tokens_required=False) for _ in range(3)]
        clients = [await each.client() for each in servers]

        async def make(number: int) -> None:
            text = f"kind: namespace\nname: team-{number}\n"
            body = {"files": [{"name": "team.yaml", "text": text}]}
            for _ in range(20):
                try:
                    await clients[number % 3].call("POST", "/v1/apply", dict, body=body)
                except Conflict:
                    continue
                return

        await asyncio.gather(*(make(number) for number in range(24)))
        found = [each for each in (await store.list("namespace")).items if isinstance(each, Namespace)]
        users = [each.status.first_user for each in found]
        assert len(found) == 25
        assert len(set(users)) == 25
        assert all((each - FIRST_NAMESPACE_USER) % USERS_PER_NAMESPACE == 0 for each in users)


async def test_of_two_servers_that_choose_the_same_ids_one_has_to_choose_again() -> None:
    async with MemoryStore() as store:
        await ensure_cluster(store)
        chosen = [await with_users(store, [Put(Namespace(meta=Meta(name=name)))]) for name in ("ants", "bees")]
        (first, along), (second, beside) = chosen
        await store.commit(*first, *along)
        with pytest.raises(Conflict):
            await store.commit(*second, *beside)


async def test_a_user_cannot_choose_the_ids_of_a_namespace(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    body = {"spec": {}, "status": {"first_user": 1}}
    made = await admin.call("PUT", "/v1/namespaces/shop", dict, body=body)
    assert made["status"]["first_user"] > FIRST_NAMESPACE_USER
    put = {"kind": "namespace", "meta": {"name": "other"}, "spec": {}, "status": {"first_user": 1}}
    with pytest.raises(Forbidden):
        await admin.call("POST", "/v1/commit", dict, body={"writes": [{"put": put}]})


async def test_ids_stay_when_a_namespace_changes(dev: Api) -> None:
    client = await dev.client()
    made = await client.call("PUT", "/v1/namespaces/shop", dict, body={})
    body = {"files": [{"name": "a.yaml", "text": "kind: namespace\nname: shop\nlevel: baseline\n"}]}
    await client.call("POST", "/v1/apply", dict, body=body)
    after = await client.call("GET", "/v1/namespaces/shop", dict)
    assert after["status"]["first_user"] == made["status"]["first_user"] > 0
    assert after["spec"]["level"] == "baseline"


async def test_a_new_cluster_is_restricted_and_a_namespace_without_levels_keeps_what_it_had() -> None:
    async with MemoryStore() as store:
        await ensure_cluster(store)
        await store.commit(Put(Namespace(meta=Meta(name="old"))))
        await ensure_users(store)
        await ensure_users(store)
        default = await store.get(Key("namespace", "", "default"))
        old = await store.get(Key("namespace", "", "old"))
        assert isinstance(default, Namespace)
        assert isinstance(old, Namespace)
        assert (default.spec.level, default.status.first_user) == ("restricted", FIRST_NAMESPACE_USER)
        assert old.spec.level == "privileged"
        assert old.status.first_user == FIRST_NAMESPACE_USER + USERS_PER_NAMESPACE


async def test_a_node_reads_only_namespaces_where_it_has_instances(api: Api) -> None:
    for name in ("mine", "theirs"):
        await api.store.commit(Put(Namespace(meta=Meta(name=name))))
    await api.store.commit(Put(make_node("n1")), Put(make_instance("web-0", node="n1", namespace="mine")))
    node = await api.client(await api.token("node", "node:n1"))
    await node.call("GET", "/v1/namespaces/mine", dict)
    with pytest.raises(NotFound):
        await node.call("GET", "/v1/namespaces/theirs", dict)
    with pytest.raises(Forbidden):
        await node.call("GET", "/v1/watch", dict, query={"kind": "namespace"})


def test_a_task_that_names_no_user_runs_as_one_of_its_namespace() -> None:
    plain = Task(image="nginx")
    own = msgspec.structs.replace(plain, security=Security(user=1000))

    def user(level: str, task: Task, engine: str, first: int = FIRST_NAMESPACE_USER) -> object:
        return user_of(Allowance("shop", NamespaceSpec(level=level), first), task, engine)  # type: ignore[arg-type]

    assert user("restricted", plain, "docker") == FIRST_NAMESPACE_USER
    assert user("restricted", own, "docker") == 1000
    assert user("restricted", plain, "docker", 0) == NOBODY
    assert user("baseline", plain, "docker") is None
    assert user("baseline", plain, "process") == FIRST_NAMESPACE_USER
    assert user("privileged", plain, "process") is None


def test_a_restricted_launch_has_no_powers_whatever_its_task_shows() -> None:
    found = confined("restricted", Security(cap_add=("NET_BIND_SERVICE",), no_new_privileges=False))
    assert found.no_new_privileges
    assert found.cap_drop == ("ALL",)
    assert found.read_only_root
    assert confined("restricted", Security(read_only_root=False)).read_only_root is False
    assert confined("baseline", Security()) == Security()
