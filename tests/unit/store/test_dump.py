"""A backup contains everything, and a damaged one is refused before anything is written."""

import gzip
import io
import json

import pytest

from mandor.errors import Conflict, Invalid, Unsupported
from mandor.model.meta import Key, Meta
from mandor.model.record import Cluster, ClusterSpec, HeartbeatSummary, HeartbeatSummarySpec, Lease, LeaseSpec
from mandor.store.base import Check, Delete, Put
from mandor.store.dump import Dump, load_dump, read_dump, write_dump
from mandor.store.fence import FencedStore
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_instance, make_node, make_workload

LEASE = Lease(meta=Meta(name="leader-scheduler"), spec=LeaseSpec(holder="s1", seconds=10))


async def full_store() -> MemoryStore:
    store = MemoryStore()
    await store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec(id="c1", epoch=3))))
    for start in range(0, 450, 50):
        await store.commit(*[Put(make_instance(f"web-{number}", node="n1")) for number in range(start, start + 50)])
    await store.commit(Put(make_workload("web", tier="front")), Put(make_node("n1")), Put(LEASE))
    await store.commit(Put(HeartbeatSummary(meta=Meta(name="s1"), spec=HeartbeatSummarySpec(nodes=("n1",)))))
    return store


async def written(store: MemoryStore) -> io.BytesIO:
    file = io.BytesIO()
    await write_dump(store, file)
    file.seek(0)
    return file


async def test_everything_comes_back_with_its_uid_and_greater_versions() -> None:
    old, new = await full_store(), MemoryStore()
    header = await load_dump(new, await written(old))
    assert (header.cluster, header.epoch, header.revision) == ("c1", 3, old.index.revision)
    before = {item.key: item for item in (await old.list(None)).items if item.kind not in {"lease", "hearing"}}
    after = {item.key: item for item in (await new.list(None)).items}
    assert after.keys() == before.keys()
    for key, item in after.items():
        assert item.meta.uid == before[key].meta.uid
        assert item.meta.created_at == before[key].meta.created_at
        assert item.labels == before[key].labels
        assert item.meta.version > old.index.revision
        if key.kind != "cluster":
            assert (item.spec, item.status) == (before[key].spec, before[key].status)


async def test_a_restore_raises_the_epoch_and_keeps_the_cluster() -> None:
    new = MemoryStore()
    await load_dump(new, await written(await full_store()))
    cluster = await new.get(Key("cluster", "", "cluster"))
    assert isinstance(cluster, Cluster)
    assert (cluster.spec.id, cluster.spec.epoch) == ("c1", 4)


async def test_a_version_from_before_the_restore_never_fits_again() -> None:
    old, new = await full_store(), MemoryStore()
    stale = await old.get(Key("node", "", "n1"))
    assert stale is not None
    await load_dump(new, await written(old))
    with pytest.raises(Conflict):
        await new.commit(Put(stale))
    with pytest.raises(Conflict):
        await new.commit(Delete(stale.key, stale.meta.version))


async def test_the_cluster_is_written_last() -> None:
    new = MemoryStore()
    await load_dump(new, await written(await full_store()))
    listing = await new.list(None)
    cluster = await new.get(Key("cluster", "", "cluster"))
    assert cluster is not None
    assert cluster.meta.version == max(item.meta.version for item in listing.items)


async def test_a_store_in_use_is_not_restored_over() -> None:
    new = MemoryStore()
    await new.commit(Put(make_node("mine")))
    with pytest.raises(Conflict):
        await load_dump(new, await written(await full_store()))
    assert [item.meta.name for item in (await new.list(None)).items] == ["mine"]


async def test_left_over_leases_do_not_count_as_use() -> None:
    new = MemoryStore()
    await new.commit(Put(LEASE))
    await load_dump(new, await written(await full_store()))
    assert list((await new.list("lease")).items) == []


async def test_an_empty_store_has_an_empty_backup() -> None:
    new = MemoryStore()
    header = await load_dump(new, await written(MemoryStore()))
    assert (header.cluster, header.epoch) == ("", 0)
    assert len(new.index) == 0


async def test_a_store_that_cannot_raise_its_revision_is_refused() -> None:
    store = MemoryStore()
    with pytest.raises(Unsupported):
        await load_dump(FencedStore(store, Check(LEASE.key, 0)), await written(await full_store()))


async def test_the_file_is_lines_of_json_that_anyone_can_read() -> None:
    lines = gzip.decompress((await written(await full_store())).read()).splitlines()
    assert json.loads(lines[0])["format"] == "mandor-dump/1"
    assert {json.loads(line)["kind"] for line in lines[1:-1]} == {"cluster", "instance", "node", "workload"}
    assert json.loads(lines[-1])["objects"] == len(lines) - 2


async def damaged() -> list[tuple[str, bytes]]:
    whole = (await written(await full_store())).read()
    text = gzip.decompress(whole)
    lines = text.splitlines(keepends=True)
    return [
        ("empty", b""),
        ("garbage", b"\x00\xff garbage" * 100),
        ("another gzip", gzip.compress(b"hello\n")),
        ("json of another kind", gzip.compress(b'{"format": "other/1", "revision": 1}\n')),
        ("cut in the middle", whole[: len(whole) // 2]),
        ("cut before the checksum", gzip.compress(b"".join(lines[:-1]))),
        ("an object missing", gzip.compress(b"".join(lines[:5] + lines[6:]))),
        ("an object changed", gzip.compress(text.replace(b'"n1"', b'"n2"', 1))),
        ("an object twice", gzip.compress(b"".join([*lines[:5], lines[4], *lines[5:]]))),
        ("something after the end", gzip.compress(text + lines[4])),
        ("an unknown kind", gzip.compress(text.replace(b'"kind":"workload"', b'"kind":"spaceship"'))),
        ("a bit turned", whole[:400] + bytes([whole[400] ^ 0x10]) + whole[401:]),
        ("a line without end", gzip.compress(lines[0] + b"x" * (16 << 20))),
    ]


async def test_a_damaged_backup_is_refused_and_nothing_is_written() -> None:
    for what, data in await damaged():
        store = MemoryStore()
        with pytest.raises(Invalid):
            await load_dump(store, io.BytesIO(data))
        assert len(store.index) == 0, what


async def test_the_header_can_be_read_alone() -> None:
    backup = read_dump(await written(await full_store()))
    assert isinstance(backup, Dump)
    assert backup.header.cluster == "c1"
    assert sum(1 for _ in backup) == 453
