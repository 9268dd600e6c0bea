"""Keys of secrets: a server with another key is refused, keys rotate, and a program can supply them."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import jwt
import pytest

import mandor
from mandor.acme.account import StoredAccount
from mandor.api.certificates import CertificateAuthority
from mandor.api.identities import IdentityKeys
from mandor.api.sealed_values import SEALED
from mandor.api.secret import opened, sealed
from mandor.api.secret_keys import Keys
from mandor.api.user_range import with_users
from mandor.errors import Invalid, MandorError, Unavailable
from mandor.lib.clock import SystemClock
from mandor.lib.sealing import KeyRing, Sealer, Unsealable, key_id_of
from mandor.model.codec import encode
from mandor.model.meta import Key, Meta
from mandor.model.node import Node
from mandor.model.record import Namespace, Server, ServerSpec
from mandor.model.secret import Secret, SecretSpec
from mandor.roots.bootstrap import ensure_cluster, ensure_master
from mandor.roots.master_key import read_master
from mandor.roots.settings import ServerSettings
from mandor.store.base import Put, Store
from mandor.store.memory import MemoryStore
from tests.components.etcd import Etcd
from tests.e2e.cluster import Cluster as Running
from tests.e2e.cluster import Program, eventually

SECRET = "kind: secret\nname: db\nvalue: {}\n"
READER = """
name: reader
type: batch
command: [sh, -c, 'echo "the value is $DB"']
secrets: {DB: db}
"""


def ring(*numbers: int) -> KeyRing:
    return KeyRing([Sealer(bytes([number]) * 32) for number in numbers])


async def put_secret(store: Store, keys: Keys, name: str, value: str) -> None:
    given = Secret(meta=Meta(name=name, namespace="default"), spec=SecretSpec(value=value))
    await store.commit(Put(sealed(keys.ring, None, given)))


async def value_of(store: Store, keys: Keys, name: str) -> str:
    found = await store.get(Key("secret", "default", name))
    assert isinstance(found, Secret)
    return opened(keys.ring, found).spec.data["value"]


async def begin(store: Store, master: KeyRing) -> Keys:
    await ensure_cluster(store, master=master)
    keys = Keys(store, master)
    await keys.load()
    return keys


async def test_a_rotation_seals_everything_anew_and_drops_the_old_key() -> None:
    store = MemoryStore()
    keys = await begin(store, ring(1))
    for number in range(120):
        await put_secret(store, keys, f"s{number}", f"value {number}")
    (before,) = {
        key_id_of(text)
        for each in (await store.list("secret")).items
        if isinstance(each, Secret)
        for text in each.spec.sealed.values()
    }
    done = await keys.rotate(1.0)
    assert (done.resealed, done.dropped) == (120, (before,))
    assert keys.ring.key_id == done.key != before
    other = await begin(store, ring(1))
    assert [await value_of(store, other, f"s{number}") for number in (0, 77)] == ["value 0", "value 77"]
    assert before not in other.ring.key_ids


async def names_of_keys(store: Store, key_ids: tuple[str, ...]) -> list[tuple[str, str]]:
    """(key id, object) of each stored object that has one of the ids anywhere in it."""
    found = (await store.list(None)).items
    return [(key_id, str(item.key)) for item in found for key_id in key_ids if key_id.encode() in encode(item)]


@pytest.mark.parametrize("older", [False, True], ids=["data key", "master key alone"])
async def test_after_a_rotation_no_stored_object_names_the_old_key(older: bool) -> None:
    """`older`: the values were sealed with the master key itself, as earlier versions did."""
    store, clock, master = MemoryStore(), SystemClock(), ring(1)
    await ensure_cluster(store, master=None if older else master)
    keys = Keys(store, master)
    await keys.load()
    authority = CertificateAuthority(store, clock, keys.ring)
    await authority.ensure("cluster-id")
    await authority.rotate("cluster-id", 3600.0)  # two authorities, each with a sealed key
    token = await IdentityKeys(store, clock, keys.ring).sign({"sub": "before"})
    await put_secret(store, keys, "db", "hunter2")
    account = await StoredAccount(store, keys.ring).load("https://acme.example/directory")
    before = (keys.ring.key_id,)
    assert {name.split()[0] for _, name in await names_of_keys(store, before)} >= set(SEALED)

    done = await keys.rotate(1.0)
    assert (done.resealed, done.dropped) == (4, () if older else before)
    left = await names_of_keys(store, before)
    # The cluster object names the master key that its data keys are sealed under.
    assert left == ([(before[0], "cluster cluster")] if older else [])

    other = await begin(store, master)
    again = CertificateAuthority(store, clock, other.ring)
    await again.ensure("cluster-id")
    assert again.ready
    assert again.fingerprint == authority.fingerprint
    identities = IdentityKeys(store, clock, other.ring)
    newer = await identities.sign({"sub": "after"})
    assert jwt.get_unverified_header(newer)["kid"] == jwt.get_unverified_header(token)["kid"]
    assert await value_of(store, other, "db") == "hunter2"
    assert await StoredAccount(store, other.ring).load("https://acme.example/directory") == account


def test_each_kind_that_stores_sealed_text_can_be_sealed_anew() -> None:
    sources = Path(mandor.__file__).parent
    users = {
        path.relative_to(sources).as_posix()
        for folder in ("acme", "api", "roots", "controllers")
        for path in (sources / folder).rglob("*.py")
        if re.search(r"\.seal\(", path.read_text())
    }
    # One module per kind of SEALED, data keys of the cluster, and the list itself.
    kinds = {"api/secret.py", "api/certificates.py", "api/identities.py", "acme/account.py"}
    # Certificates by ACME are secrets, too.
    assert users == kinds | {"api/secret_keys.py", "api/sealed_values.py", "controllers/certificate.py"}
    assert len(kinds) == len(SEALED)


async def test_what_another_server_seals_with_the_old_key_meanwhile_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore()
    keys, other = await begin(store, ring(1)), await begin(store, ring(1))
    spec = ServerSpec(version="1", keys=keys.master_ids)
    keys.living = lambda: [Server(meta=Meta(name=name), spec=spec) for name in ("a", "b")]

    async def other_seals(_: Keys) -> None:
        await put_secret(store, other, "late", "hunter2")  # it has not heard of the new key
        await other.load()

    monkeypatch.setattr(Keys, "_settle", other_seals)
    before = keys.ring.key_id
    done = await keys.rotate(1.0)
    assert done.dropped == (before,)
    assert await value_of(store, await begin(store, ring(1)), "late") == "hunter2"


async def test_a_master_key_is_replaced_in_two_steps() -> None:
    store = MemoryStore()
    keys = await begin(store, ring(1))
    await put_secret(store, keys, "db", "hunter2")
    both = await begin(store, ring(2, 1))
    await both.rotate(1.0)
    alone = await begin(store, ring(2))
    assert await value_of(store, alone, "db") == "hunter2"
    with pytest.raises(Invalid, match="sealed under"):
        await begin(store, ring(1))


async def test_a_key_that_another_object_uses_is_not_deleted() -> None:
    store = MemoryStore()
    keys = await begin(store, ring(1))
    first = keys.ring.key_id
    await put_secret(store, keys, "db", "hunter2")

    foreign = keys.ring.seal("private", "some other thing")
    await store.commit(Put(Node(meta=Meta(name="n1", labels={"sealed": foreign}))))
    done = await keys.rotate(1.0)
    assert done.dropped == ()
    assert keys.ring.open(foreign, "some other thing") == "private"
    assert first in keys.ring.key_ids


async def test_secrets_of_a_cluster_without_data_keys_are_taken_over() -> None:
    """Earlier versions sealed with the master key itself."""
    store, master = MemoryStore(), ring(1)
    await ensure_cluster(store)
    old = sealed(master, None, Secret(meta=Meta(name="db", namespace="default"), spec=SecretSpec(value="hunter2")))
    await store.commit(Put(old))
    keys = Keys(store, master)
    await keys.load()
    await keys.begin(1.0)
    assert await value_of(store, keys, "db") == "hunter2"
    await keys.rotate(2.0)
    found = await store.get(Key("secret", "default", "db"))
    assert isinstance(found, Secret)
    assert key_id_of(found.spec.sealed["value"]) == keys.ring.key_id not in master.key_ids
    wrong = Keys(store, ring(3))
    with pytest.raises(Invalid):
        await wrong.load()


async def test_a_new_namespace_leaves_the_data_keys_alone() -> None:
    store = MemoryStore()
    keys = await begin(store, ring(1))
    await put_secret(store, keys, "db", "hunter2")
    writes, along = await with_users(store, [Put(Namespace(meta=Meta(name="team")))])
    await store.commit(*writes, *along)
    assert await value_of(store, await begin(store, ring(1)), "db") == "hunter2"


def test_what_is_sealed_for_one_place_opens_at_no_other() -> None:
    keys = ring(1, 2)
    text = ring(2).seal("hello", "one")
    assert keys.open(text, "one") == "hello"
    with pytest.raises(Unsealable):
        keys.open(text, "another")
    with pytest.raises(Unsealable, match="was sealed with the key"):
        ring(1).open(text, "one")


def test_a_program_supplies_the_keys_without_a_shell(tmp_path: Path) -> None:
    key = "ab" * 32
    found = read_master(tmp_path / "none", given=False, command=f"{sys.executable} -c 'print(\"{key}\")'")
    assert found is not None
    assert found.key_id == Sealer(bytes.fromhex(key)).key_id
    touched = tmp_path / "touched"
    with pytest.raises(MandorError):
        read_master(tmp_path / "none", given=False, command=f"echo x; touch {touched}")
    assert not touched.exists()


@pytest.mark.parametrize(
    ("program", "story"),
    [
        ("import sys; sys.exit(3)", "status 3"),
        ("print('no key')", "is not a key"),
        ("import sys\nwhile True: sys.stdout.write('a' * 65536)", "more than"),
        ("import time; time.sleep(100)", "did not return the key"),
    ],
    ids=["fails", "nonsense", "endless", "hangs"],
)
def test_a_program_that_gives_no_key_is_an_error(
    tmp_path: Path, program: str, story: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.roots.master_key.COMMAND_SECONDS", 1.0 if "sleep" in program else 30.0)
    script = tmp_path / "script.py"
    script.write_text(program)
    with pytest.raises((Unavailable, Invalid), match=story):
        read_master(tmp_path / "none", given=False, command=f"{sys.executable} {script}")


async def test_a_missing_key_file_is_not_replaced_while_secrets_need_it(tmp_path: Path) -> None:
    settings = ServerSettings(data=str(tmp_path))
    store = MemoryStore()
    keys = await begin(store, await ensure_master(store, settings))
    await put_secret(store, keys, "db", "hunter2")
    (tmp_path / "secrets.key").unlink()
    with pytest.raises(Invalid, match="is missing, but the store holds 1 secrets"):
        await ensure_master(store, settings)
    assert not (tmp_path / "secrets.key").exists()


# Real servers.


def refusal(cluster: Running, number: int) -> str:
    server = cluster.servers[number]
    eventually("the server ends", lambda: not server.running)
    return server.text()


def test_a_second_server_with_a_key_of_its_own_is_refused_and_works_with_the_shared_one(
    tmp_path: Path, etcd: Etcd
) -> None:
    with Running(tmp_path, store=f"etcd://{etcd.endpoints[0]}{etcd.prefix()}") as cluster:
        cluster.start_server()
        cluster.apply(SECRET.format("hunter2"))
        with pytest.raises(AssertionError):
            cluster.start_server(share_key=False)
        assert "is missing, but the store holds 1 secrets" in refusal(cluster, 1)
        second, home = cluster.servers[1], tmp_path / "server1"
        (home / "secrets.key").write_text("cd" * 32 + "\n")
        second.start()
        text = refusal(cluster, 1)
        assert "the cluster's secrets are sealed under" in text
        assert "secrets.key" in text
        (home / "secrets.key").write_text((tmp_path / "server0" / "secrets.key").read_text())
        second.start()
        cluster.wait_ready(1)

        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        before = cluster.call("GET", "/v1/secret-keys")[1]["items"]
        done = cluster.mandor("secrets", "rotate-key")
        assert done.returncode == 0, done.stderr
        after = cluster.call("GET", "/v1/secret-keys", server=1)[1]["items"]
        assert len(before) == len(after) == 1
        assert before[0]["id"] != after[0]["id"]
        cluster.servers[0].kill()  # the other one must open what was sealed by this one
        cluster.urls.reverse()
        cluster.apply(READER)
        eventually("it ran", lambda: cluster.instances("reader", phase="Succeeded"))


def test_a_restore_into_a_new_folder_names_the_key_that_has_to_be_copied(tmp_path: Path) -> None:
    with Running(tmp_path) as cluster:
        cluster.start_server()
        cluster.apply(SECRET.format("hunter2"))
        assert cluster.mandor("backup", str(tmp_path / "saved")).returncode == 0
        cluster.servers[0].end()
        home = tmp_path / "server1"
        done = cluster.mandor("restore", str(tmp_path / "saved"), "--data", str(home))
        assert done.returncode == 0, done.stderr
        key = tmp_path / "server0" / "secrets.key"
        assert f"which is not in {home}/secrets.key: copy `secrets.key` of the server" in done.stderr
        assert Sealer(bytes.fromhex(key.read_text())).key_id in done.stderr

        again = tmp_path / "server2"
        again.mkdir(mode=0o700)
        (again / "secrets.key").write_text(key.read_text())
        done = cluster.mandor("restore", str(tmp_path / "saved"), "--data", str(again))
        assert "secrets.key" not in done.stderr

        home.chmod(0o700)
        server = Program("restored", [*cluster.servers[0].command], home / "log", cluster.servers[0].env)
        server.command[server.command.index("--data") + 1] = str(home)
        cluster.servers[0] = server
        server.start()
        assert "is missing, but the store holds 1 secrets" in refusal(cluster, 0)
        (home / "secrets.key").write_text(key.read_text())
        (home / "secrets.key").chmod(0o600)
        server.start()
        cluster.wait_ready()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(READER)
        eventually("it ran", lambda: cluster.instances("reader", phase="Succeeded"))


def test_secrets_of_a_lost_key_are_deleted_only_on_request(tmp_path: Path) -> None:
    with Running(tmp_path) as cluster:
        server = cluster.start_server()
        cluster.apply(SECRET.format("hunter2"))
        server.end()
        home = tmp_path / "server0"
        os.unlink(home / "secrets.key")
        server.start()
        assert "mandor recover --forget-secrets" in refusal(cluster, 0)
        shown = cluster.mandor("recover", "--data", str(home), "--forget-secrets")
        assert "cannot be decrypted: secret default/db" in shown.stdout
        assert "nothing was written" in shown.stderr
        done = cluster.mandor("recover", "--data", str(home), "--forget-secrets", "--yes")
        assert done.returncode == 0, done.stderr
        server.start()
        cluster.wait_ready()
        assert cluster.items("secrets") == []
        cluster.apply(SECRET.format("new"))


def test_sealed_data_keys_cannot_be_read_over_the_api(tmp_path: Path) -> None:
    with Running(tmp_path) as cluster:
        cluster.start_server()
        for path in ("/v1/clusters/cluster", "/v1/clusters", "/v1/secret-keys", "/v1"):
            status, answer = cluster.call("GET", path)
            assert "v1." not in str(answer), (path, status)
