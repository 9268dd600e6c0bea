"""EtcdStore with a real etcd: two servers, cut networks, compaction, TLS, users, foreign data."""

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from mandor.errors import Conflict, Expired, Invalid, TooLarge, Unavailable
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodeSpec
from mandor.store.access import StoreAccess
from mandor.store.base import Check, Delete, Put, Store
from mandor.store.etcd import EtcdStore
from mandor.store.open import open_store
from mandor.testing.store import Watcher, make_node, read_node, seen
from tests.components.etcd import Etcd
from tests.components.ports import free_port
from tests.integration.store.proxy import Proxy

pytestmark = pytest.mark.real("etcd")

StartEtcd = Callable[..., Etcd]


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not done():
            await asyncio.sleep(0.01)


@asynccontextmanager
async def two_servers(etcd: Etcd) -> AsyncIterator[tuple[EtcdStore, EtcdStore]]:
    prefix = etcd.prefix()
    async with (
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as one,
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as two,
    ):
        yield one, two


async def names(store: Store) -> list[str]:
    return [item.meta.name for item in (await store.list("node")).items]


# Two servers, one cluster.


@pytest.mark.req("S0-7", "S2-23")
async def test_a_commit_of_one_server_appears_equal_at_the_other(etcd: Etcd) -> None:
    async with two_servers(etcd) as (one, two):
        revision = await one.commit(Put(make_node("n1", zone="a")))
        await until(lambda: two.index.revision >= revision)
        assert await read_node(one, "n1") == await read_node(two, "n1")


async def test_watchers_of_two_servers_see_the_same_order(etcd: Etcd) -> None:
    async with two_servers(etcd) as (one, two):
        start = one.index.revision
        async with Watcher(one, None, since=start) as first, Watcher(two, None, since=two.index.revision) as second:
            await asyncio.gather(
                *[
                    store.commit(Put(make_node(f"{name}{number}")))
                    for number in range(40)
                    for store, name in ((one, "a"), (two, "b"))
                ]
            )
            orders = [[(change.revision, change.key) for change in await each.count(80)] for each in (first, second)]
        assert orders[0] == orders[1]


@pytest.mark.req("S0-7")
async def test_of_writers_at_two_servers_exactly_one_wins(etcd: Etcd) -> None:
    async with two_servers(etcd) as (one, two):
        revision = await one.commit(Put(make_node("n1")))
        await until(lambda: two.index.revision >= revision)
        read = await read_node(one, "n1")
        results = await asyncio.gather(
            *[
                store.commit(Put(read.changed(spec=NodeSpec(pool=f"p{number}"))))
                for number, store in enumerate([one, two] * 10)
            ],
            return_exceptions=True,
        )
        assert sum(isinstance(result, int) for result in results) == 1
        assert all(isinstance(result, int | Conflict) for result in results)


async def test_a_server_that_lags_behind_does_not_refuse_a_newer_version(etcd: Etcd) -> None:
    """A caller may read from one server and write to another that has not seen that version yet."""
    async with two_servers(etcd) as (one, two):
        await one.commit(Put(make_node("n1")))
        for number in range(20):
            await two.commit(Put((await read_node(one, "n1")).changed(spec=NodeSpec(pool=f"p{number}"))))
            revision = two.index.revision
            await until(lambda revision=revision: one.index.revision >= revision)  # type: ignore[misc]


@pytest.mark.req("S0-7")
async def test_a_watch_can_be_resumed_at_another_server(etcd: Etcd) -> None:
    async with two_servers(etcd) as (one, two):
        revisions = [await one.commit(Put(make_node(f"n{number}"))) for number in range(10)]
        await until(lambda: two.index.revision >= revisions[-1])
        async with Watcher(two, "node", since=revisions[3]) as watcher:
            assert [change.revision for change in await watcher.count(6)] == revisions[4:]


@pytest.mark.req("S0-7", "S0-18", "S2-23")
async def test_a_restarted_server_finds_everything_and_the_revision_goes_on(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    async with await EtcdStore.open(etcd.endpoints, prefix=prefix) as store:
        for start in range(0, 1200, 100):
            await store.commit(*[Put(make_node(f"n{number}")) for number in range(start, start + 100)])
        before = await store.list(None)
    async with await EtcdStore.open(etcd.endpoints, prefix=prefix) as store:
        after = await store.list(None)
        assert list(after.items) == list(before.items)
        assert await store.commit(Put(make_node("new"))) > before.revision


async def test_clusters_under_different_prefixes_do_not_see_each_other(etcd: Etcd) -> None:
    async with (
        await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as one,
        await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as two,
    ):
        await one.commit(Put(make_node("n1")))
        await two.commit(Put(make_node("n2")))
        assert (await names(one), await names(two)) == (["n1"], ["n2"])


# The network.


async def test_a_cut_watch_goes_on_without_gap_or_repeat(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    async with (
        Proxy(etcd.endpoints[0]) as proxy,
        await EtcdStore.open([proxy.endpoint], prefix=prefix) as cut,
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as whole,
        Watcher(cut, "node", since=cut.index.revision) as watcher,
    ):
        revisions = []
        for number in range(60):
            if number % 20 == 5:
                proxy.cut()
            if number % 20 == 15:
                proxy.mend()
            revisions.append(await whole.commit(Put(make_node(f"n{number:02}"))))
        assert [change.revision for change in await watcher.count(60)] == revisions


async def test_while_etcd_is_out_of_reach_reads_go_on_and_commits_report_it(etcd: Etcd) -> None:
    async with (
        Proxy(etcd.endpoints[0]) as proxy,
        await EtcdStore.open([proxy.endpoint], prefix=etcd.prefix(), wait_seconds=0.5) as store,
    ):
        await store.commit(Put(make_node("n1")))
        proxy.cut()
        with pytest.raises(Unavailable):
            await store.commit(Put(make_node("n2")))
        assert await names(store) == ["n1"]
        proxy.mend()

        async def goes_through() -> bool:
            try:
                await store.commit(Put(make_node("n3")))
            except Unavailable:
                return False
            return True

        async with asyncio.timeout(60):
            while not await goes_through():
                pass
        assert "n3" in await names(store)


async def test_a_commit_whose_answer_was_lost_is_found_and_not_made_twice(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    async with (
        Proxy(etcd.endpoints[0]) as proxy,
        await EtcdStore.open([proxy.endpoint], prefix=prefix) as store,
        Watcher(store, "node", since=store.index.revision) as watcher,
    ):
        proxy.mute()
        committing = asyncio.create_task(store.commit(Put(make_node("n1"))))
        async with asyncio.timeout(60):
            while "n1" not in await asyncio.to_thread(etcd.etcdctl, "get", "--prefix", prefix, "--keys-only"):
                await asyncio.sleep(0.02)
        assert not committing.done()
        proxy.cut()
        proxy.mend()
        revision = await committing
        assert (await read_node(store, "n1")).meta.version == revision
        assert [change.revision for change in await watcher.count(1)] == [revision]


async def test_a_commit_whose_answer_was_lost_and_that_others_overwrote_is_reported_as_unknown(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    async with (
        Proxy(etcd.endpoints[0]) as proxy,
        await EtcdStore.open([proxy.endpoint], prefix=prefix) as store,
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as other,
    ):
        proxy.mute()
        committing = asyncio.create_task(store.commit(Put(make_node("n1"))))
        await until(lambda: len(other.index) == 1)
        await other.commit(Put((await read_node(other, "n1")).changed(spec=NodeSpec(pool="theirs"))))
        proxy.cut()
        proxy.mend()
        with pytest.raises(Unavailable, match="not known to be stored"):
            await committing
        await until(lambda: store.index.revision == other.index.revision)
        assert (await read_node(store, "n1")).spec.pool == "theirs"


@pytest.mark.req("S0-7")
async def test_a_watcher_of_a_server_that_missed_compacted_history_gets_the_difference(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    async with (
        Proxy(etcd.endpoints[0]) as proxy,
        await EtcdStore.open([proxy.endpoint], prefix=prefix) as cut,
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as whole,
    ):
        revision = await cut.commit(Put(make_node("stays")), Put(make_node("changes")), Put(make_node("goes")))
        await until(lambda: whole.index.revision >= revision)
        async with Watcher(cut, "node", since=revision) as watcher:
            proxy.cut()
            goes = await read_node(whole, "goes")
            await whole.commit(Delete(goes.key, goes.meta.version))
            for pool in ("a", "b"):
                changes = await read_node(whole, "changes")
                await whole.commit(Put(changes.changed(spec=NodeSpec(pool=pool))))
            last = await whole.commit(Put(make_node("new")))
            etcd.etcdctl("compaction", str(last))
            proxy.mend()
            assert sorted(seen(await watcher.count(3))) == [
                ("changed", "changes"),
                ("created", "new"),
                ("deleted", "goes"),
            ]
            assert (await cut.list(None)).items == (await whole.list(None)).items
        # Whoever comes with a place from before cannot be told everything.
        with pytest.raises(Expired):
            async for _ in cut.watch("node", since=revision):
                pass


async def test_the_store_compacts_history_by_itself(etcd: Etcd) -> None:
    async with await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix(), compact_seconds=0.1) as store:
        first = await store.commit(Put(make_node("n1")))
        for number in range(10):
            read = await read_node(store, "n1")
            await store.commit(Put(read.changed(spec=NodeSpec(pool=f"p{number}"))))

        def compacted() -> bool:
            try:
                etcd.etcdctl("get", "/nothing", f"--rev={first}")
            except RuntimeError as error:
                return "compacted" in str(error)
            return False

        async with asyncio.timeout(60):
            while not await asyncio.to_thread(compacted):
                await asyncio.sleep(0.05)
        read = await read_node(store, "n1")
        await store.commit(Put(read))


async def test_an_etcd_that_forgot_is_noticed_and_nothing_is_written_to_it(new_etcd: StartEtcd) -> None:
    etcd = new_etcd()
    async with await EtcdStore.open(etcd.endpoints, wait_seconds=5) as store:
        for number in range(5):
            await store.commit(Put(make_node(f"n{number}")))
        etcd.kill(0)
        shutil.rmtree(etcd.members[0].folder / etcd.members[0].name)
        etcd.start(0)
        await until(lambda: store._state.broken is not None)
        with pytest.raises(Unavailable, match="restored"):
            await store.commit(Put(make_node("n9")))
        assert len(await names(store)) == 5
    assert "n9" not in etcd.etcdctl("get", "--prefix", "/", "--keys-only")


# Bad luck and bad input.


async def test_a_missing_etcd_is_reported_clearly(etcd: Etcd) -> None:
    with pytest.raises(Unavailable, match="no etcd endpoint answers") as caught:
        await EtcdStore.open([f"127.0.0.1:{free_port()}"])
    assert caught.value.hint


async def test_an_unreadable_value_is_refused_at_start(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    etcd.etcdctl("put", f"{prefix}objects/node//n1", "garbage")
    with pytest.raises(Invalid, match="objects/node//n1"):
        await EtcdStore.open(etcd.endpoints, prefix=prefix)


async def test_kinds_of_a_later_version_and_foreign_keys_are_left_alone(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    keys = [f"{prefix}objects/spaceship//s1", f"{prefix}objects/too/many/parts/here", f"{prefix}notes", "/elsewhere"]
    etcd.etcdctl("put", keys[0], "x")
    async with await EtcdStore.open(etcd.endpoints, prefix=prefix) as store:
        for key in keys[1:]:
            etcd.etcdctl("put", key, "x")
        await store.commit(Put(make_node("n1")))
        etcd.etcdctl("put", f"{prefix}objects/node//n1", "garbage")  # better the old object than none
        await store.commit(Put(make_node("n2")))
        assert await names(store) == ["n1", "n2"]
        assert len((await store.list(None)).items) == 2
    assert all(key in etcd.etcdctl("get", "--prefix", "/", "--keys-only") for key in keys)


async def test_a_commit_too_large_for_etcd_reports_it_and_the_next_one_works(etcd: Etcd) -> None:
    async with await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as store:
        filler = {f"key{number}": "x" * 256 for number in range(64)}
        with pytest.raises(TooLarge):
            await store.commit(*[Put(make_node(f"n{number}", **filler)) for number in range(100)])
        await store.commit(*[Put(make_node(f"n{number}", **filler)) for number in range(50)])


async def test_an_etcd_whose_space_is_used_up_refuses_writes_and_answers_reads(new_etcd: StartEtcd) -> None:
    etcd = new_etcd(options=["--quota-backend-bytes=2000000"])
    async with await EtcdStore.open(etcd.endpoints, wait_seconds=0.5) as store:
        filler = {f"key{number}": "x" * 256 for number in range(64)}

        async def fill() -> None:
            for number in range(1000):
                await store.commit(Put(make_node(f"n{number}", **filler)))

        with pytest.raises(Unavailable, match="space exceeded") as caught:
            await fill()
        assert caught.value.hint
        stored = len(await names(store))
        assert 0 < stored < 1000
        etcd.etcdctl("del", "--prefix", "/mandor/objects/node//n1")
        await until(lambda: len(store.index) < stored)
        etcd.etcdctl("compaction", str(store.index.revision))
        etcd.etcdctl("defrag")
        etcd.etcdctl("alarm", "disarm")
        await store.commit(Put(make_node("small")))
        assert "small" in await names(store)


async def test_a_version_from_before_a_restore_is_a_conflict(etcd: Etcd) -> None:
    async with await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as store:
        await store.skip_to(store.index.revision + 1_000_000)
        floor = store.index.revision
        revision = await store.commit(Put(make_node("n1")))
        assert revision > floor >= 1_000_000
        stale = Meta(name="n1", uid=(await read_node(store, "n1")).meta.uid, version=revision - 1_000_000)
        with pytest.raises(Conflict):
            await store.commit(Put(Node(meta=stale)))
        with pytest.raises(Conflict):
            await store.commit(Check(Key("node", "", "n1"), 7), Put(make_node("n2")))


async def test_a_server_that_runs_while_the_cluster_is_restored_stops_writing(etcd: Etcd) -> None:
    async with two_servers(etcd) as (one, two):
        await one.skip_to(one.index.revision + 1000)
        await until(lambda: two._state.broken is not None)
        with pytest.raises(Unavailable, match="restored"):
            await two.commit(Put(make_node("n1")))
        await one.commit(Put(make_node("n1")))


# Who may come in.


@pytest.mark.req("S0-7")
async def test_tls_with_a_client_certificate(etcd_tls: Etcd) -> None:
    tls = etcd_tls.tls
    assert tls is not None
    access = StoreAccess(ca=str(tls.ca_file), cert=str(tls.cert_file), key=str(tls.key_file))
    url = f"etcds://{etcd_tls.endpoints[0]}/shop"
    async with await open_store(url, access=access) as store:
        await store.commit(Put(make_node("n1")))
        async with Watcher(store, "node", since=(await store.list(None)).revision) as watcher:
            await store.commit(Put(make_node("n2")))
            await watcher.count(1)
    assert "/shop/objects/node//n1" in etcd_tls.etcdctl("get", "--prefix", "/", "--keys-only")


@pytest.mark.parametrize("lacking", ["everything", "certificate", "ca"])
async def test_without_the_client_certificate_the_connection_is_refused(etcd_tls: Etcd, lacking: str) -> None:
    tls = etcd_tls.tls
    assert tls is not None
    access = {
        "everything": StoreAccess(),
        "certificate": StoreAccess(ca=str(tls.ca_file)),
        "ca": StoreAccess(tls=True, cert=str(tls.cert_file), key=str(tls.key_file)),
    }[lacking]
    with pytest.raises(Unavailable):
        await EtcdStore.open(etcd_tls.endpoints, access=access)


async def test_a_file_that_is_not_there_is_named(etcd: Etcd) -> None:
    with pytest.raises(Invalid, match="no-such-ca"):
        await EtcdStore.open(etcd.endpoints, access=StoreAccess(ca="/no-such-ca.pem"))
    with pytest.raises(Invalid, match="both"):
        await EtcdStore.open(etcd.endpoints, access=StoreAccess(cert="/some.pem"))


async def tokens_expire(etcd: Etcd) -> None:
    """Wait until a token that etcd issues now has expired. A use extends a token, so each is tried once."""

    def call(path: str, body: dict[str, str], **headers: str) -> dict[str, str]:
        request = urllib.request.Request(
            f"http://{etcd.endpoints[0]}/v3/{path}", json.dumps(body).encode(), headers=headers
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)  # type: ignore[no-any-return]

    tokens = [call("auth/authenticate", {"name": "ani", "password": "rahasia"})["token"] for _ in range(100)]
    everything = base64.b64encode(b"/mandor/").decode()
    refused = b""
    for token in tokens:
        await asyncio.sleep(0.2)
        try:
            await asyncio.to_thread(call, "kv/range", {"key": everything}, Authorization=token)
        except urllib.error.HTTPError as error:
            refused = error.read()
            break
    assert b"invalid auth token" in refused


async def test_a_user_with_a_password_whose_token_runs_out(new_etcd: StartEtcd) -> None:
    etcd = new_etcd(options=["--auth-token-ttl=1"])
    for command in (
        "user add root:secret",
        "user grant-role root root",
        "role add mandor",
        "role grant-permission mandor readwrite --prefix=true /mandor/",
        "user add ani:rahasia",
        "user grant-role ani mandor",
        "auth enable",
    ):
        etcd.etcdctl(*command.split())
    with pytest.raises(Unavailable, match="authentication failed") as caught:
        await open_store(f"etcd://ani:wrong@{etcd.endpoints[0]}/mandor")
    assert caught.value.hint
    with pytest.raises(Unavailable):
        await open_store(f"etcd://{etcd.endpoints[0]}/mandor")
    with pytest.raises(Unavailable, match="permission denied"):
        await open_store(f"etcd://ani:rahasia@{etcd.endpoints[0]}/elsewhere")
    access = StoreAccess(user="ani", password="rahasia")
    async with await EtcdStore.open(etcd.endpoints, access=access) as store:
        await store.commit(Put(make_node("n1")))
        await tokens_expire(etcd)
        await store.commit(Put(make_node("n2")))
        door = store.lease_channel()
        assert door is not None
        await asyncio.to_thread(door.commit, Put(make_node("n3")), seconds=20.0)
        await tokens_expire(etcd)
        assert await asyncio.to_thread(door.get, Key("node", "", "n2"), 20.0) is not None
        await until(lambda: len(store.index) == 3)
        assert await names(store) == ["n1", "n2", "n3"]


def test_without_grpcio_the_hint_shows_what_to_install() -> None:
    code = (
        "import asyncio, sys\n"
        "sys.modules['grpc'] = None\n"
        "from mandor.errors import Unsupported\n"
        "from mandor.store.open import open_store\n"
        "try:\n"
        "    asyncio.run(open_store('etcd://127.0.0.1:2379'))\n"
        "except Unsupported as error:\n"
        "    print(error, '|', error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "needs grpc" in done.stdout
    assert "mandor[etcd]" in done.stdout
