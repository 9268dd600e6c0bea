"""Audit: every change except nodes' own reports is recorded whole, without secrets; a removed record is detected."""

import asyncio
import json
import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from mandor.api.app import OPERATIONS
from mandor.cli.main import cli
from mandor.client.aio import Client
from mandor.controllers.audit import AuditKeeper
from mandor.controllers.audit_export import AuditExporter
from mandor.controllers.audit_plan import KeepAudits
from mandor.errors import Forbidden, Invalid, MandorError, Unavailable
from mandor.lib.clock import Clock, SystemClock
from mandor.model.audit import Audit, AuditSpec, verify
from mandor.model.codec import KINDS as DECLARED
from mandor.model.codec import encode
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.machine import Machine, PoolScaling
from mandor.model.meta import Key, Meta
from mandor.model.node import RENEWS, Node, NodePhase, NodeStatus
from mandor.model.pool import NodePool, NodePoolStatus
from mandor.model.record import Namespace, NamespaceSpec
from mandor.model.vm_request import VmRequest
from mandor.roots.audit import AuditSinks
from mandor.roots.key_files import KeyFiles
from mandor.store.base import Put, Store
from mandor.store.memory import MemoryStore
from mandor.store.sqlite import SqliteStore
from mandor.store.state_file import with_sum
from mandor.testing.store import make_node, make_workload
from tests.api.conftest import Api, StartApi
from tests.api.test_sessions import agent, log_frame, running_instance

LONG = 30.0
HERE = {"namespace": "team-a"}
SPEC = {"groups": {"main": {"tasks": {"main": {"command": ["sleep", "1"], "env": {"PASSWORD": "hunter2"}}}}}}


async def records(store: Store) -> list[Audit]:
    found = [each for each in (await store.list("audit")).items if isinstance(each, Audit)]
    return sorted((each for each in found if each.spec.seal is None), key=lambda each: each.meta.version)


async def plain(store: Store) -> list[dict[str, Any]]:
    return [json.loads(encode(each)) for each in (await store.list("audit")).items]


# What is recorded.


async def test_a_commit_of_a_hundred_objects_leaves_all_its_keys_in_one_record_of_the_same_revision(
    dev: Api,
) -> None:
    client = await dev.client()
    texts = "\n---\n".join(f"name: w{number:03}\ncommand: [sleep]" for number in range(99))
    await client.request("POST", "/v1/apply", body=texts.encode(), content_type="application/yaml")
    (record,) = await records(dev.store)
    assert {each.about for each in record.spec.entries} == {f"workload default/w{number:03}" for number in range(99)}
    assert all(each.changes for each in record.spec.entries)
    stored = await dev.store.get(Key("workload", "default", "w050"))
    assert stored is not None
    assert stored.meta.version == record.meta.version


async def test_the_record_of_an_enormous_commit_is_bounded_and_counts_what_it_left_out(dev: Api) -> None:
    client = await dev.client()
    labels = {f"k{number}": "x" * 250 for number in range(64)}
    writes = [
        {
            "put": {
                "kind": "workload",
                "meta": {"name": f"w{number}", "namespace": "default", "labels": labels},
                "spec": SPEC,
            }
        }
        for number in range(90)
    ]
    await client.call("POST", "/v1/commit", dict, body={"writes": writes})
    (record,) = await records(dev.store)
    assert len(record.spec.entries) == 90
    assert all(each.omitted for each in record.spec.entries)
    assert len(encode(record)) < 300 * 1024


async def test_a_change_shows_old_and_new_values_the_tokens_name_and_the_address(api: Api) -> None:
    text = await api.token("operator", "user:ani")
    ani = await api.client(text)
    await ani.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    await ani.call("PATCH", "/v1/workloads/web", dict, body={"spec": {"groups": {"main": {"replicas": 3}}}})
    await ani.call("DELETE", "/v1/workloads/web", dict)
    made, changed, deleted = await records(api.store)
    (change,) = changed.spec.entries[0].changes
    assert (change.path, change.after) == ("spec.groups.main.replicas", "3")
    assert changed.spec.token == text.removeprefix("mdr_").rpartition("_")[0]
    assert changed.spec.address == "127.0.0.1"
    assert made.spec.entries[0].verb == "create"
    gone = {each.path: each for each in deleted.spec.entries[0].changes}
    assert gone["spec.groups.main.replicas"].before == "3"
    assert gone["spec.groups.main.replicas"].after is None


async def test_no_secret_reaches_a_record(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:root"))
    await admin.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
    files = [{"path": "/etc/app.conf", "content": "key = sesame"}]
    with_file = {"groups": {"main": {"tasks": {"main": {"command": ["a"], "files": files}}}}}
    await admin.call("PUT", "/v1/workloads/api", dict, body={"spec": with_file})
    secret = b"kind: secret\nname: db\ndata: {password: swordfish}"
    await admin.request("POST", "/v1/apply", body=secret, content_type="application/yaml")
    other = secret.replace(b"swordfish", b"marlin")
    await admin.request("POST", "/v1/apply", body=other, content_type="application/yaml")
    made = await admin.call("POST", "/v1/tokens", dict, body={"role": "viewer", "identity": "citra"})
    rotated = await admin.call("POST", f"/v1/tokens/{made['name']}/rotate", dict, body={})
    await admin.call("DELETE", f"/v1/tokens/{rotated['name']}", dict)
    await admin.call("DELETE", "/v1/secrets/db", dict)
    kept = b"".join(encode(each) for each in await records(api.store))
    tokens = list((await api.store.list("token")).items)
    hashes = [each.spec.hash for each in tokens]
    sealed = [made["token"].rpartition("_")[2], rotated["token"].rpartition("_")[2], *hashes]
    for word in ("hunter2", "sesame", "swordfish", "marlin", *sealed):
        assert word.encode() not in kept, word


async def test_component_tokens_are_recorded_and_nodes_writes_of_their_status_are_not(api: Api) -> None:
    await api.store.commit(Put(make_node("n1")))
    node = await api.client(await api.token("node", "node:n1"))
    component = await api.client(await api.token("component", "component:controllers"))
    found = json.loads(encode(await api.store.get(Key("node", "", "n1"))))
    found["status"]["address"] = "10.0.0.1"
    await node.call("POST", "/v1/commit", dict, body={"writes": [{"put": found}]})
    assert not await records(api.store)
    found = json.loads(encode(await api.store.get(Key("node", "", "n1"))))
    found["status"]["phase"] = "Ready"
    await component.call("POST", "/v1/commit", dict, body={"writes": [{"put": found}]})
    (record,) = await records(api.store)
    assert record.spec.identity == "component:controllers"
    assert "status.phase" in {each.path for each in record.spec.entries[0].changes}


async def test_a_component_that_writes_a_hundred_objects_is_recorded_in_the_same_commit(api: Api) -> None:
    component = await api.client(await api.token("component", "component:any"))
    writes = [{"put": json.loads(encode(make_node(f"n{number}")))} for number in range(100)]
    await component.call("POST", "/v1/commit", dict, body={"writes": writes})
    (record,) = await records(api.store)
    assert len(record.spec.entries) == 100


async def test_exec_is_recorded_with_its_command_and_logs_with_their_reader(api: Api) -> None:
    await running_instance(api.store)

    async def serve(session: Any, line: Any) -> None:
        await line.send(log_frame("hello"))

    client = await api.client(await api.token("operator", "user:ani"))
    async with agent(api.url, await api.token("node", "node:n1"), serve):
        query = [("command", "sh"), ("command", "-c"), ("command", "rm -rf /data")]
        async with await client.dial("/v1/instances/web-0/exec", query=query) as line:
            await line.receive()
        await client.request("GET", "/v1/instances/web-0/logs")
    ran, read = await records(api.store)
    facts = {each.path: each.after for each in ran.spec.entries[0].changes}
    assert (ran.spec.verb, ran.spec.about, facts["node"]) == ("exec", "instance default/web-0", "n1")
    assert facts["command"] == '["sh","-c","rm -rf /data"]'
    assert (read.spec.verb, read.spec.identity) == ("logs", "user:ani")


async def test_the_first_tokens_of_a_cluster_are_recorded(tmp_path: Path) -> None:
    async with MemoryStore() as store:
        await KeyFiles(store, SystemClock(), tmp_path, admin=True).keep()
        made = await records(store)
    assert {(each.spec.identity, each.spec.verb) for each in made} == {("component:server", "create")}
    assert len(made) == 2


SILENT = {
    "heartbeat": "a node's own report",
    "report_applied": "a node's own report",
    "gateway_applied": "a gateway's own report",
    "read_route_certificate": "recorded as `serve`; needs a route with a certificate",
    "simulate": "writes nothing",
    "plan": "see the test of profiles",
    "issue_identity": "signs a token for a task of the node that asks, and writes nothing",
    "rotate_secret_key": "recorded as `rotate-key`; needs a server with a keyring",
    "rotate_ca": "recorded as `rotate`; needs a server with an authority",
    "issue_certificate": "recorded as `certify` where it changes the node's credential; needs an authority",
}
"""Operations that may write by their method, and why they leave no record."""
KINDS: dict[str, dict[str, Any]] = {
    "node-pool": {},
    "workload": SPEC,
    "namespace": {},
    "priority-class": {"value": 10},
    "quota": {"cpu": "10"},
    "limit-defaults": {"resources": {"cpu": "100m"}},
    "volume": {},
    "rebalance": {},
    "reservation": {"resources": {"cpu": "1"}, "end": "2099-01-01T00:00:00+00:00"},
    "service": {"external": ["192.0.2.5:5432"], "port": {"sql": {"port": 5432}}},
    "route": {"host": "shop.example", "to": [{"service": "shop"}]},
    "network": {"subnet": "10.92.0.0/16"},
    "secret": {"data": {"a": "b"}},
    "webhook": {"url": "https://hooks.example/x", "secret": "hook"},
    "event-bus": {"url": "nats://bus.example:4222"},
    "role": {"rules": [{"verbs": ["get"], "kinds": ["workload"]}]},
    "role-binding": {"role": "viewer", "users": ["ani"]},
    "issuer": {"url": "https://login.example", "audience": ["mandor"]},
    "log-sink": {"url": "syslog+udp://logs.example:514"},
}
"""The smallest specs that can be written; kinds with rules of their own are written in `_seed`."""


async def _requests(admin: Client, node: Client, store: Store) -> AsyncIterator[tuple[str, Awaitable[Any]]]:
    """The name of each operation that writes, and a request for it, in an order in which all of them can be made."""

    def ask(method: str, path: str, body: Any = None, by: Client = admin) -> Awaitable[Any]:
        return by.call(method, path, dict, body=body)

    yield "join", ask("POST", "/v1/nodes/n9/join", {})
    yield "order_renewal", ask("POST", "/v1/nodes/n1/renew-credential", {})
    yield "renew_credential", ask("POST", "/v1/nodes/n1/credential", {"secret": "ab" * 32}, node)
    yield "put_node", ask("PUT", "/v1/nodes/n5", {"spec": {}})
    yield "patch_node", ask("PATCH", "/v1/nodes/n1", {"spec": {"cordoned": True}})
    yield "delete_node", ask("DELETE", "/v1/nodes/n5")
    yield "delete_instance", ask("DELETE", "/v1/instances/web-0")
    yield "order_rollout", ask("POST", "/v1/workloads/web/rollout", {"order": "pause"})
    for kind in ("webhook", "event-bus"):
        plural = DECLARED[kind].plural
        yield f"test_{kind.replace('-', '_')}", ask("POST", f"/v1/{plural}/seeded/test")
    for kind, spec in KINDS.items():
        plural = DECLARED[kind].plural
        yield f"patch_{kind}", ask("PATCH", f"/v1/{plural}/seeded", {"meta": {"labels": {"a": "b"}}})
        yield f"delete_{kind}", ask("DELETE", f"/v1/{plural}/seeded")
        yield f"put_{kind}", ask("PUT", f"/v1/{plural}/made", {"spec": spec})
    yield "commit", ask("POST", "/v1/commit", {"writes": [{"put": json.loads(encode(make_workload("c")))}]})
    yield "apply", admin.request("POST", "/v1/apply", body=b"name: a\ncommand: [x]", content_type="application/yaml")
    yield "delete", admin.request("POST", "/v1/delete", body=b"name: a\ncommand: [x]", content_type="application/yaml")
    asked = {"requested_cpu": 1, "requested_memory": 1}
    yield "schedule_vm", ask("POST", "/schedule", asked)
    task = (await store.list("task")).items[0]
    assert isinstance(task, VmRequest)
    placed = task.moved("Processing", 1.0, "x").moved("Placed", 2.0, "x")
    await store.commit(Put(placed))
    yield "confirm_vm", ask("POST", f"/schedule/{task.meta.name}/confirm")
    yield "cancel_vm", ask("POST", f"/schedule/{task.meta.name}/cancel")
    again = (await admin.call("POST", "/schedule", dict, body=asked))["task_id"]
    yield "delete_vm_task", ask("DELETE", f"/schedule/{again}")
    yield "prepare_spare", ask("POST", "/spare/prepare", {"size": {"cpu": 1, "memory": 1}, "cluster": "k1"})
    spare = (await store.list("spare")).items[0].meta.name
    yield "release_spare", ask("POST", f"/spare/{spare}/release", {})
    machines = PoolScaling(machines=(Machine(id="gone-1", kind="small", at=1.0),))
    await store.commit(Put(NodePool(meta=Meta(name="gone"), status=NodePoolStatus(scaling=machines))))
    yield "forget_machines", ask("POST", "/v1/node-pools/gone/forget", {"machines": ["gone-1"]})
    yield "create_token", ask("POST", "/v1/tokens", {"role": "viewer", "identity": "x", "expires_seconds": 3600})
    token = next(each.meta.name for each in (await store.list("token")).items if each.spec.identity == "user:x")
    yield "rotate_token", ask("POST", f"/v1/tokens/{token}/rotate", {})
    yield "delete_token", ask("DELETE", f"/v1/tokens/{token}")


async def test_every_operation_that_writes_leaves_a_record(start_api: StartApi) -> None:
    """A new operation has to be added to `_requests`, or to `SILENT` with a reason."""
    server = await start_api(tokens_required=True, clusters=("k1",))
    store = server.store
    admin = await server.client(await server.token("admin", "user:root"))
    node = await server.client(await server.token("node", "node:n1"))
    facts = NodeStatus(phase=NodePhase.READY, facts={RENEWS: "yes"})
    await store.commit(Put(Node(meta=Meta(name="n1"), status=facts)))
    await running_instance(store)
    await store.commit(Put(make_workload("web")))
    for kind, spec in KINDS.items():
        plural = DECLARED[kind].plural
        await admin.call("PUT", f"/v1/{plural}/seeded", dict, body={"spec": spec})
    tried = set()
    async for name, request in _requests(admin, node, store):
        before = {each.meta.name for each in await records(store)}
        try:
            await request
        except MandorError as error:
            raise AssertionError(f"{name}: {error}") from error
        assert {each.meta.name for each in await records(store)} - before, f"{name} left no record"
        tried.add(name)
    assert {each.name for each in OPERATIONS if each.method != "GET"} - tried - SILENT.keys() == set()


async def test_a_backup_and_a_plan_with_a_profile_are_recorded(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:root"))
    assert await admin.request("GET", "/v1/backup")
    (record,) = await records(api.store)
    assert (record.spec.verb, record.spec.identity) == ("backup", "user:root")


# Identities.


async def test_a_namespaced_admin_cannot_make_an_identity_of_the_whole_cluster(api: Api) -> None:
    await api.store.commit(Put(Namespace(meta=Meta(name="team-a"), spec=NamespaceSpec(level="privileged"))))
    team = await api.client(await api.token("admin", "user:team-a/boss", ("team-a",)))
    body = {"role": "admin", "identity": "user:admin", "namespaces": ["team-a"]}
    made = await team.call("POST", "/v1/tokens", dict, body=body)
    assert made["identity"] == "user:team-a/admin"
    forged = await api.client(made["token"])
    await forged.call("PUT", "/v1/workloads/web", dict, query=HERE, body={"spec": SPEC})
    assert {each.spec.identity for each in await records(api.store)} == {"user:team-a/boss", "user:team-a/admin"}
    with pytest.raises(Invalid):
        await team.call("POST", "/v1/tokens", dict, body={**body, "identity": "user:team-b/admin"})
    with pytest.raises(Forbidden):
        await team.call("POST", "/v1/tokens", dict, body={**body, "namespaces": ["team-b"]})


async def test_an_identity_of_a_namespace_shares_no_rate_with_one_of_the_cluster(start_api: StartApi) -> None:
    server = await start_api(tokens_required=True, writes_per_second=0.001, writes_burst=2)
    await server.store.commit(Put(Namespace(meta=Meta(name="team-a"), spec=NamespaceSpec(level="privileged"))))
    team = await server.client(await server.token("admin", "user:team-a/boss", ("team-a",)))
    body = {"role": "operator", "identity": "admin", "namespaces": ["team-a"]}
    forged = await server.client((await team.call("POST", "/v1/tokens", dict, body=body))["token"])
    for name in ("a", "b"):
        await forged.call("PUT", f"/v1/workloads/{name}", dict, query=HERE, body={"spec": SPEC})
    with pytest.raises(MandorError, match="user:team-a/admin"):
        await forged.call("PUT", "/v1/workloads/c", dict, query=HERE, body={"spec": SPEC})
    real = await server.client(await server.token("admin", "user:admin"))
    await real.call("PUT", "/v1/workloads/d", dict, body={"spec": SPEC})


# The chain.


class FastClock(SystemClock):
    """Waits a hundredth of the time."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.02))


def record(number: int, at: float = 1_000.0) -> Audit:
    spec = AuditSpec(at=at, identity="user:ani", verb="apply", about=f"workload default/w{number}")
    return Audit(meta=Meta(name=f"{number:014d}-aa"), spec=spec)


@asynccontextmanager
async def keeping(
    store: Store, keep: KeepAudits | None = None, clock: Clock | None = None
) -> AsyncIterator[AuditKeeper]:
    keeper = AuditKeeper(store, clock or FastClock(), keep or KeepAudits(seconds=1e12))
    task = asyncio.create_task(keeper.run())
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def sealed(store: Store, count: int) -> None:
    async with asyncio.timeout(LONG):
        while verify(await plain(store)).records < count:
            await asyncio.sleep(0.01)


async def write(store: Store, numbers: Sequence[int]) -> None:
    for number in numbers:
        await store.commit(Put(record(number)))


def change(path: Path, name: str, alter: Callable[[dict[str, Any]], None] | None) -> None:
    """Alter or delete a record in the file of a store, as a person who has the file would."""
    with sqlite3.connect(path) as database:
        for key, data in database.execute("select key, data from objects").fetchall():
            found = json.loads(data.splitlines()[0]) if key else None
            if not isinstance(found, dict) or found.get("kind") != "audit" or found["meta"]["name"] != name:
                continue
            if alter is None:
                database.execute("delete from objects where key = ?", (key,))
                return
            alter(found)
            database.execute(
                "update objects set data = ? where key = ?", (with_sum(key, json.dumps(found).encode()), key)
            )
            return
    raise AssertionError(f"{name} is not in {path}")


@pytest.mark.parametrize("count", [3, 450])
async def test_an_unchanged_chain_is_valid(count: int) -> None:
    async with MemoryStore() as store, keeping(store):
        await write(store, range(count))
        await sealed(store, count)
        verdict = verify(await plain(store))
        assert (verdict.faults, verdict.unsealed, verdict.expired) == ([], 0, 0)


@pytest.mark.parametrize(
    ("name", "alter", "said"),
    [
        (f"{7:014d}-aa", None, "is missing"),
        (f"{7:014d}-aa", lambda each: each["spec"].update(identity="user:innocent"), "was changed"),
        ("seal-000000000001", None, "removed or reordered|missing"),
        (
            "seal-000000000002",
            lambda each: each["spec"]["seal"]["records"].reverse(),
            "was changed",
        ),
        ("seal-000000000002", lambda each: each["spec"]["seal"]["records"].pop(3), "was changed"),
    ],
)
async def test_tampering_in_the_file_of_the_store_is_found(
    tmp_path: Path, name: str, alter: Callable[[dict[str, Any]], None] | None, said: str
) -> None:
    path = tmp_path / "store.db"
    async with await SqliteStore.open(path) as store, keeping(store):
        await write(store, range(450))
        await sealed(store, 450)
    change(path, name, alter)
    async with await SqliteStore.open(path) as store:
        verdict = verify(await plain(store))
    assert any(re.search(said, each) for each in verdict.faults), verdict.faults


async def test_a_seal_that_is_forged_whole_does_not_follow_the_others(tmp_path: Path) -> None:
    """Recomputing the digest of one seal is not enough: the next one names the old digest."""
    from mandor.model.audit import digest_of_seal

    async with MemoryStore() as store, keeping(store):
        await write(store, range(450))
        await sealed(store, 450)
        items = await plain(store)
    seal = next(each["spec"]["seal"] for each in items if each["meta"]["name"] == "seal-000000000001")
    gone = seal["records"].pop(3)[0]
    seal["digest"] = digest_of_seal(1, 0, "", seal["records"])
    verdict = verify([each for each in items if each["meta"]["name"] != gone])
    assert any("does not follow" in each for each in verdict.faults)


async def test_a_chain_whose_end_was_cut_off_does_not_contain_an_earlier_head() -> None:
    async with MemoryStore() as store, keeping(store):
        await write(store, range(450))
        await sealed(store, 450)
        items = await plain(store)
        head = verify(items).head
        await write(store, range(450, 460))
        await sealed(store, 460)
        assert not verify(await plain(store), head=head).faults
    last = {f"{number:014d}-aa" for number in range(400, 450)} | {"seal-000000000003"}
    cut = [each for each in items if each["meta"]["name"] not in last]
    assert not verify(cut).faults
    assert verify(cut, head=head).faults


async def test_what_expires_is_announced_and_the_chain_stays_whole() -> None:
    async with MemoryStore() as store:
        async with keeping(store):
            await write(store, range(450))
            await sealed(store, 450)
        async with keeping(store, KeepAudits(seconds=1e12, most_bytes=1)):
            async with asyncio.timeout(LONG):
                while verify(await plain(store)).expired < 400:
                    await asyncio.sleep(0.01)
        left = await records(store)
        assert f"{3:014d}-aa" not in {each.meta.name for each in left}
        assert f"{420:014d}-aa" in {each.meta.name for each in left}
        assert sum(each.spec.verb == "expire" for each in left) == 2
        items = await plain(store)
        assert not verify(items).faults
        # Without the record that says so, the same deletion is a fault.
        unsaid = [each for each in items if each["spec"]["verb"] != "expire"]
        assert verify(unsaid).faults


async def test_audit_records_are_deleted_after_the_configured_time() -> None:
    now = SystemClock().now()
    async with MemoryStore() as store:
        for number in range(450):
            await store.commit(Put(record(number, at=now - 1_000 if number < 200 else now)))
        async with keeping(store):
            await sealed(store, 450)
        async with keeping(store, KeepAudits(seconds=900.0)):
            async with asyncio.timeout(LONG):
                left = {each.meta.name for each in await records(store)}
                while f"{199:014d}-aa" in left or verify(await plain(store)).expired < 200:
                    await asyncio.sleep(0.01)
                    left = {each.meta.name for each in await records(store)}
        assert {f"{number:014d}-aa" for number in range(200, 450)} <= left


async def test_another_leader_goes_on_with_the_same_chain() -> None:
    async with MemoryStore() as store:
        for start in (0, 150, 300):
            async with keeping(store):
                await write(store, range(start, start + 150))
                await sealed(store, start + 150)
        async with keeping(store), keeping(store):
            await write(store, range(450, 600))
            await sealed(store, 600)
        verdict = verify(await plain(store))
        assert (verdict.faults, verdict.records) == ([], 600)


async def test_the_command_verifies_and_fails_where_a_record_is_missing(dev: Api) -> None:
    async with keeping(dev.store):
        client = await dev.client()
        await client.call("PUT", "/v1/workloads/web", dict, body={"spec": SPEC})
        await client.call("PUT", "/v1/workloads/api", dict, body={"spec": SPEC})
        await sealed(dev.store, 2)

    async def run(*words: str) -> Any:
        return await asyncio.to_thread(CliRunner().invoke, cli, ["audit", "--server", dev.url, *words])

    good = await run("--verify")
    assert good.exit_code == 0, good.output
    assert "2 records verified" in good.output
    shown = await run("--about", "workload/web")
    assert "workload default/web" in shown.output
    assert "spec.groups.main.tasks.main.command" in shown.output
    assert "hunter2" not in shown.output
    assert "default/api" not in shown.output
    first = (await records(dev.store))[0]
    from mandor.store.base import Delete

    await dev.store.commit(Delete(first.key, first.meta.version))
    bad = await run("--verify")
    assert bad.exit_code == 1
    assert f"{first.meta.name} is missing" in bad.output


# Export.


class Receiver:
    """Takes records, or refuses for a while."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.down = False

    async def send(self, given: Sequence[Audit]) -> None:
        if self.down:
            raise Unavailable("down")
        self.got += [each.meta.name for each in given]

    async def close(self) -> None:
        return


@asynccontextmanager
async def exporting(store: Store, receiver: Receiver) -> AsyncIterator[None]:
    async with keeping(store) as keeper:
        exporter = AuditExporter(store, FastClock(), keeper, lambda spec: receiver)
        task = asyncio.create_task(exporter.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_a_log_sink_gets_every_record_once_it_takes_them() -> None:
    receiver = Receiver()
    receiver.down = True
    async with MemoryStore() as store, exporting(store, receiver):
        spec = LogSinkSpec(url="syslog+tcp://logs.example:601", sources=(), audit=True, batch=20)
        await store.commit(Put(LogSink(meta=Meta(name="audits"), spec=spec)))
        await write(store, range(250))
        await sealed(store, 250)
        receiver.down = False
        async with asyncio.timeout(LONG):
            while len(receiver.got) < 250:
                await asyncio.sleep(0.01)
        assert receiver.got == [f"{number:014d}-aa" for number in range(250)]


async def test_a_file_gets_records_only_below_the_servers_folder(tmp_path: Path) -> None:
    store = MemoryStore()
    inside = AuditSinks(store, None, str(tmp_path)).open(
        LogSinkSpec(url=f"file://{tmp_path}/audit.log", sources=(), audit=True)
    )
    await inside.send([record(1)])
    assert "user:ani" in (tmp_path / "audit.log").read_text()
    outside = AuditSinks(store, None, "").open(LogSinkSpec(url=f"file://{tmp_path}/other.log", sources=(), audit=True))
    with pytest.raises(Unavailable):
        await outside.send([record(1)])
    assert not (tmp_path / "other.log").exists()
