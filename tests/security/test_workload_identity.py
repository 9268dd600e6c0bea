"""Workload identity: issued only to the node of an instance, verifiable by anyone, enough to read a named secret."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import jwt
import pytest

from mandor.agent.identity import IdentityKeeper, give_token, write_token
from mandor.agent.launch import make_launch
from mandor.agent.order import Order
from mandor.agent.sync_inputs import SyncInputs
from mandor.api.identities import ROTATE_SECONDS, IdentityKeys
from mandor.errors import Forbidden, Invalid, NotFound, Unauthenticated, Unavailable
from mandor.lib.clock import SystemClock
from mandor.lib.sealing import Sealer
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.node import Node, NodeSpec
from mandor.model.phase import Phase
from mandor.model.record import Namespace
from mandor.model.task import Identity, Task
from mandor.model.workload import Release, ReleaseSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api
from tests.e2e.cluster import Cluster, eventually

TASK = Task(command=("sleep", "1"), identity=Identity(name="shop", audience=("bank",)))
TEMPLATE = GroupTemplate(tasks={"main": TASK, "plain": Task(command=("sleep", "1"))})


async def prepared(api: Api) -> Instance:
    """An instance with an identity on n1, in the store of the server."""
    instance = Instance(
        meta=Meta(name="web-0", namespace="team"),
        spec=InstanceSpec(workload="web", group="main", release="web-1", index=0, node="n1"),
        status=InstanceStatus(phase=Phase.RUNNING),
    )
    release = Release(
        meta=Meta(name="web-1", namespace="team"),
        spec=ReleaseSpec(workload="web", sequence=1, hash="h", groups={"main": TEMPLATE}),
    )
    nodes = [Put(Node(meta=Meta(name=name), spec=NodeSpec())) for name in ("n1", "n2")]
    await api.store.commit(Put(Namespace(meta=Meta(name="team"))), Put(release), Put(instance), *nodes)
    found = await api.store.get(instance.key)
    assert isinstance(found, Instance)
    return found


def ask(instance: Instance, task: str = "main") -> dict[str, Any]:
    return {"path": "/v1/instances/web-0/identity?namespace=team", "body": {"uid": instance.meta.uid, "task": task}}


async def test_a_token_is_issued_to_the_node_of_the_instance_and_verifies_with_the_published_keys(api: Api) -> None:
    instance = await prepared(api)
    node = await api.client(await api.token("node", "node:n1"))
    path, body = ask(instance).values()
    issued = await node.call("POST", path, dict, body=body)
    session = await api.session()
    async with session.get("/.well-known/openid-configuration") as answer:
        about = await answer.json()
    async with session.get(about["jwks_uri"].removeprefix(api.url)) as answer:
        keys = jwt.PyJWKSet.from_dict(await answer.json())
    key = next(each for each in keys.keys if each.key_id == jwt.get_unverified_header(issued["token"])["kid"])
    claims = jwt.decode(issued["token"], key, algorithms=["ES256"], audience="bank", issuer=about["issuer"])
    assert claims["sub"] == "mandor:c1:team:web:shop"
    assert (claims["instance"], claims["node"], claims["uid"]) == ("web-0", "n1", instance.meta.uid)
    assert claims["exp"] - claims["iat"] == 3600


async def test_no_other_caller_gets_the_identity_of_an_instance(api: Api) -> None:
    instance = await prepared(api)
    path, body = ask(instance).values()
    for role, identity in [
        ("node", "node:n2"),
        ("admin", "user:root"),
        ("operator", "user:op"),
        ("component", "component:x"),
        ("join", "join:x"),
    ]:
        client = await api.client(await api.token(role, identity))  # type: ignore[arg-type]
        with pytest.raises(Forbidden):
            await client.call("POST", path, dict, body=body)
    stranger = await api.client()
    with pytest.raises(Unauthenticated):
        await stranger.call("POST", path, dict, body=body)
    node = await api.client(await api.token("node", "node:n1"))
    with pytest.raises(Forbidden):
        await node.call("POST", path, dict, body={**body, "uid": "another"})
    for task in ("plain", "none"):
        with pytest.raises(NotFound):
            await node.call("POST", path, dict, body={**body, "task": task})
    over = instance.changed(status=InstanceStatus(phase=Phase.FAILED))
    await api.store.commit(Put(over))
    with pytest.raises(Forbidden, match="has ended"):
        await node.call("POST", path, dict, body=body)


async def test_the_private_key_is_sealed_and_never_shown(api: Api) -> None:
    instance = await prepared(api)
    node = await api.client(await api.token("node", "node:n1"))
    path, body = ask(instance).values()
    await node.call("POST", path, dict, body=body)
    (key,) = (await api.store.list("identity-key")).items
    assert key.spec.sealed.startswith("v1.")
    for role, identity in [("admin", "user:root"), ("component", "component:x")]:
        session = await api.session(await api.token(role, identity))  # type: ignore[arg-type]
        for where in ("/v1/identity-keys", "/v1/snapshot", f"/v1/objects?key=identity-key//{key.meta.name}"):
            async with session.get(where) as answer:
                assert key.spec.sealed not in await answer.text(), where
    for client in (await api.client(await api.token("viewer", "user:v")), node):
        with pytest.raises(Forbidden):
            await client.call("GET", "/v1/identity-keys", dict)


class Clock(SystemClock):
    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_keys_are_rotated_and_old_ones_are_published_until_their_tokens_have_ended() -> None:
    clock = Clock()
    async with MemoryStore() as store:
        keys = IdentityKeys(store, clock, Sealer.of("k"))
        first = jwt.get_unverified_header(await keys.sign({"sub": "a"}))["kid"]
        assert jwt.get_unverified_header(await keys.sign({"sub": "a"}))["kid"] == first
        clock.ahead += ROTATE_SECONDS + 1
        second = jwt.get_unverified_header(await keys.sign({"sub": "a"}))["kid"]
        assert [each["kid"] for each in await keys.published()] == [second, first]
        clock.ahead += ROTATE_SECONDS + 1
        third = jwt.get_unverified_header(await keys.sign({"sub": "a"}))["kid"]
        assert [each["kid"] for each in await keys.published()] == [third, second]
        other = IdentityKeys(store, clock, Sealer.of("another key"))
        with pytest.raises(Unavailable):
            await other.sign({"sub": "a"})


# The agent.


class StubLink:
    """Issues numbered tokens, or fails."""

    count = 0
    error: Exception | None = None

    async def identity(self, instance: Instance, task: str) -> tuple[str, float]:
        if self.error is not None:
            raise self.error
        self.count += 1
        return f"token-{self.count}", 600.0


def an_order() -> Order:
    instance = Instance(
        meta=Meta(name="web-0", namespace="team", uid="u1"),
        spec=InstanceSpec(workload="web", group="main", release="web-1", index=0, node="n1"),
    )
    return Order(instance=instance, template=TEMPLATE)


@pytest.fixture
def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.agent.identity.memory_folder", lambda node: None)
    monkeypatch.setattr("mandor.agent.identity.LOOK_SECONDS", 0.01)


@pytest.mark.usefixtures("no_memory")
async def test_a_token_is_replaced_in_place_before_it_ends_and_deleted_with_its_instance(tmp_path: Path) -> None:
    clock, link, order = Clock(), StubLink(), an_order()
    keeper = IdentityKeeper(tmp_path, "n1", link, clock, asyncio.to_thread, lambda: [order])  # type: ignore[arg-type]
    folder = Path((await keeper.ready(order))["main"])
    await keeper.give(order, "main", os.getuid())
    token = folder / "token"
    assert token.read_text() == "token-1"
    assert (token.stat().st_mode & 0o777, folder.stat().st_mode & 0o777) == (0o400, 0o700)
    with token.open() as held:
        clock.ahead += 401
        running = asyncio.create_task(keeper.run())
        async with asyncio.timeout(30):
            while token.read_text() != "token-2":
                await asyncio.sleep(0.01)
        assert held.read() == "token-1", "a reader has the whole old one"
    assert token.stat().st_mode & 0o777 == 0o400
    assert [each.name for each in folder.iterdir()] == ["token"]
    # While the control plane is away, a task that begins again has the token that is good yet.
    link.error = Unavailable("away")
    clock.ahead += 401
    assert await keeper.ready(order)
    clock.ahead += 401
    with pytest.raises(Unavailable):
        await keeper.ready(order)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await keeper.forget("u1")
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files are given to another user")
def test_a_token_belongs_to_the_user_of_its_task_and_stays_so(tmp_path: Path) -> None:
    place = tmp_path / "identity" / "processes" / "u1.main"
    write_token(place, "token", "one")
    assert (place / "token").stat().st_mode & 0o777 == 0o400
    give_token(place, 12345, False)
    for text in ("one", "two"):
        write_token(place, "token", text)
        status = (place / "token").stat()
        assert (status.st_uid, status.st_mode & 0o777) == (12345, 0o400)
    assert place.parent.stat().st_mode & 0o777 == 0o711
    inside = tmp_path / "identity" / "containers" / "u2.main"
    write_token(inside, "token", "one")
    give_token(inside, None, True)
    assert inside.parent.stat().st_mode & 0o777 == 0o700, "no other user of the node passes"
    assert (inside / "token").stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize(
    ("extras", "path", "read_only"),
    [
        (frozenset({"mounts"}), "/run/mandor/identity", True),
        (frozenset({"mounts", "links"}), "identity", True),
        (frozenset({"links"}), "identity", False),
    ],
)
def test_a_task_finds_its_token_by_a_variable(extras: frozenset[str], path: str, read_only: bool) -> None:
    inputs = SyncInputs(units=(), status=InstanceStatus(phase=Phase.PENDING), identities={"main": "/x"}, extras=extras)
    launch = make_launch(an_order(), "main", "docker", inputs)
    (mount,) = launch.mounts
    assert (mount.path, mount.source, mount.read_only) == (path, "/x", read_only)
    assert launch.env["MANDOR_IDENTITY_TOKEN_FILE"] == f"{path}/token"
    assert "MANDOR_IDENTITY_TOKEN_FILE" not in make_launch(an_order(), "plain", "docker", inputs).env


@pytest.mark.parametrize("text", ["{ttl: 1s}", "{ttl: 3d}", "{audience: []}", "{file: token}", "{file: /a/../b}"])
def test_an_identity_has_bounds(text: str) -> None:
    from mandor.model.manifest import load_manifests

    with pytest.raises(Invalid):
        load_manifests(f"name: a\ncommand: [x]\nidentity: {text}\n")


# Two clusters.

READ = """
import json, os, urllib.request
token = open(os.environ["MANDOR_IDENTITY_TOKEN_FILE"]).read()
def get(name):
    url = os.environ["BANK"] + "/v1/secrets/" + name + "/value?namespace=default"
    request = urllib.request.Request(url, headers={"authorization": "Bearer " + token})
    try:
        return json.load(urllib.request.urlopen(request))["data"]["value"]
    except urllib.error.HTTPError as error:
        return error.code
print(get("wanted"), get("other"), flush=True)
"""

TRUST = """
kind: secret
name: wanted
value: from-the-other-cluster
---
kind: secret
name: other
value: not-for-you
---
kind: issuer
name: east
url: {url}
audience: [bank]
subjects: workloads
---
kind: role
name: reader
rules: [{{verbs: [read-value], kinds: [secret], namespaces: [default], names: [wanted]}}]
---
kind: role-binding
name: reader
role: reader
issuer: east
claims: {{namespace: default, workload: reader}}
"""


def test_a_workload_of_one_cluster_reads_a_secret_of_another(tmp_path: Path) -> None:
    with Cluster(tmp_path / "east") as east, Cluster(tmp_path / "west") as west:
        east.start_server()
        east.start_agent("n1")
        east.wait_nodes("n1")
        west.start_server()
        west.apply(TRUST.format(url=east.urls[0]))
        for name in ("reader", "stranger"):
            manifest = {
                "name": name,
                "type": "batch",
                "engine": "process",
                "command": ["python3", "-c", READ],
                "env": {"BANK": west.urls[0]},
                "identity": {"name": "main", "audience": ["bank"], "ttl": "5m"},
            }
            east.apply(f"kind: namespace\nname: default\nlevel: privileged\n---\n{json.dumps(manifest)}")
            eventually(f"{name} is done", lambda name=name: east.instances(name, phase="Succeeded"))  # type: ignore[misc]
        assert east.mandor("logs", "reader-0").stdout.strip() == "from-the-other-cluster 403"
        assert east.mandor("logs", "stranger-0").stdout.strip() == "403 403"
        # The read is in the audit of the cluster that has the secret.
        about = json.dumps(west.items("audits"))
        assert "read-value" in about
        assert "workload:east:mandor:" in about
        assert "from-the-other-cluster" not in about
        keys = json.loads(urlopen(f"{east.urls[0]}/v1/jwks").read())["keys"]
        assert all("d" not in each for each in keys)
