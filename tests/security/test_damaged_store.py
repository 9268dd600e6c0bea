"""Damaged stores: files are flipped, cut, emptied and deleted; a server starts with everything, or refuses."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mandor.api.cluster import KEY
from mandor.errors import Invalid, MandorError
from mandor.model.meta import Meta
from mandor.model.node import Node
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.access import StoreAccess
from mandor.store.base import Put
from mandor.store.marked import MarkedStore, check_not_older
from mandor.store.marker import Marker, MarkerContent, read_marker
from mandor.store.open import open_store
from tests.components.etcd import Etcd
from tests.e2e.cluster import Cluster as Running
from tests.e2e.cluster import eventually

SEEDS = 160
NODES = 300
PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from mandor.model.meta import Meta
from mandor.model.node import Node
from mandor.roots.bootstrap import ensure_cluster
from mandor.store.base import Delete, Put
from mandor.store.marked import MarkedStore
from mandor.store.marker import Marker, MarkerContent
from mandor.store.open import open_store

async def main(home, nodes):
    store = MarkedStore(await open_store(f"sqlite:{home}/state.db"))
    spec = await ensure_cluster(store)
    store.use(Marker(Path(home) / "cluster.marker", MarkerContent(cluster=spec.id, epoch=1, revision=1)))
    for n in range(nodes):
        name = f"n{n:04}"
        node = Node(meta=Meta(name=name, labels={f"text-{n}": "x" * 60 for n in range(12)}))
        version = await store.commit(Put(node))
        print(name, flush=True)
        if n % 7 == 0:
            await store.commit(Delete(node.key, version))
            print("-" + name, flush=True)
    os.kill(os.getpid(), 9)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


def folder_of_a_killed_server(tmp_path: Path) -> tuple[Path, set[str]]:
    """A data directory as kill -9 leaves it, and the names that were acknowledged."""
    home = tmp_path / "killed"
    home.mkdir()
    command = [sys.executable, "-c", PROGRAM, str(home), str(NODES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    words = done.stdout.split()
    gone = {word[1:] for word in words if word.startswith("-")}
    return home, {word for word in words if not word.startswith("-")} - gone


def damage(home: Path, chance: random.Random) -> str:
    """Spoil the database or its log in one of the ways that disks and people have."""
    name = chance.choice(["state.db", "state.db-wal", "state.db-wal"])
    path = home / name
    data = bytearray(path.read_bytes())
    how = chance.choice(["flip", "flip", "flip", "cut", "zero", "delete", "empty"])
    if how == "flip":
        place = chance.randrange(len(data))
        data[place] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        return f"{name}: bit of byte {place}"
    if how == "zero":
        place = chance.randrange(len(data))
        data[place : place + 512] = bytes(len(data[place : place + 512]))
        path.write_bytes(data)
        return f"{name}: zeros at {place}"
    if how == "delete":
        path.unlink()
        return f"{name}: deleted"
    left = 0 if how == "empty" else chance.randrange(len(data))
    path.write_bytes(data[:left])
    return f"{name}: cut to {left}"


async def start(home: Path) -> tuple[ClusterSpec, set[str]]:
    """Open the store and compare it with the marker, as a server does before it writes."""
    known = read_marker(home / "cluster.marker")
    assert known is not None
    async with await open_store(f"sqlite:{home}/state.db", access=StoreAccess(marker=known)) as store:
        found = await store.get(KEY)
        spec = found.spec if isinstance(found, Cluster) else None
        check_not_older(spec, (await store.list("cluster")).revision, known, accept_older=False)
        assert spec is not None
        return spec, {item.meta.name for item in (await store.list("node")).items}


def copied(home: Path, target: Path) -> Path:
    shutil.copytree(home, target)
    return target


def content(home: Path) -> dict[str, bytes]:
    """Everything but locks and empty files, which SQLite makes by looking."""
    files = {path.name: path.read_bytes() for path in home.iterdir() if path.suffix != ".lock"}
    return {name: data for name, data in files.items() if data}


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_a_store_damaged_anywhere_opens_with_everything_acknowledged_or_is_refused(
    tmp_path: Path, checkpointed: bool
) -> None:
    home, names = folder_of_a_killed_server(tmp_path)
    spec, found = await start(copied(home, tmp_path / "whole"))
    assert found == names
    if checkpointed:
        await start(home)  # a clean end moves the log into the database
        (home / "state.db-wal").touch()
    refused = 0
    for seed in range(SEEDS // 2):
        copy = copied(home, tmp_path / f"copy{seed}")
        what = damage(copy, random.Random(seed)) if (copy / "state.db-wal").stat().st_size else flip(copy, seed)
        kept = content(copy)
        try:
            after, found = await start(copy)
        except MandorError as error:
            refused += 1
            opened = "is damaged at" in str(error) or "holds an object of revision" in str(error)
            hint = error.hint
        else:
            assert after.id == spec.id, what
            assert found == names, what
            opened, hint = True, "started"
        assert hint, what
        assert opened or content(copy) == kept, what
        shutil.rmtree(copy)
    assert refused > SEEDS / 8


def flip(home: Path, seed: int) -> str:
    path, chance = home / "state.db", random.Random(seed)
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"bit of byte {place}"


async def test_the_marker_survives_a_torn_slot_and_reports_it_when_both_are_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cluster.marker"
    marker = Marker(path, MarkerContent(cluster="c", epoch=1, revision=1))
    marker.raise_to(7)
    marker.raise_to(8)
    marker.close()
    data = bytearray(path.read_bytes())
    assert read_marker(path) == MarkerContent(cluster="c", epoch=1, revision=8)
    data[512:600] = bytes(88)
    path.write_bytes(data)
    known = read_marker(path)
    assert known is not None
    assert known.revision in (7, 8)
    data[:90] = bytes(90)
    path.write_bytes(data)
    with pytest.raises(Invalid, match="is damaged"):
        read_marker(path)


async def test_a_commit_returns_after_the_marker_holds_its_revision(tmp_path: Path) -> None:
    path = tmp_path / "cluster.marker"
    async with await open_store(f"sqlite:{tmp_path / 'state.db'}") as opened, MarkedStore(opened) as store:
        store.use(Marker(path, MarkerContent(cluster="c", epoch=1, revision=0)))
        for number in range(20):
            revision = await store.commit(Put(Node(meta=Meta(name=f"n{number}"))))
            known = read_marker(path)
            assert known is not None
            assert known.revision == revision


# Real servers.


def make_work(cluster: Running, count: int = 5) -> None:
    for number in range(count):
        cluster.apply(f"kind: namespace\nname: team-{number}\n")


def names(cluster: Running) -> set[str]:
    return {item["meta"]["name"] for item in cluster.items("namespaces")}


def refusal(cluster: Running) -> str:
    """Start the server, which must end by itself; what it logs."""
    server = cluster.servers[0]
    server.log.write_text("")
    server.start()
    eventually("the server ends", lambda: not server.running)
    assert server.process is not None
    assert server.process.returncode != 0
    return server.text()


def delete(home: Path) -> None:
    for path in home.glob("state.db*"):
        path.unlink()


def empty(home: Path) -> None:
    for path in home.glob("state.db*"):
        path.write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "story"),
    [
        (delete, "is missing; it held cluster"),
        (empty, "is empty; it held cluster"),
        (lambda home: (home / "state.db-wal").write_bytes(b""), "older than it was|is empty; it held|is damaged"),
        (lambda home: (home / "state.db").write_bytes(b"\0" * 8192), "its header is overwritten"),
        (lambda home: (home / "cluster.marker").write_bytes(b"\0" * 1024), "cluster.marker is damaged"),
    ],
    ids=["deleted", "emptied", "no log", "zeros", "marker"],
)
def test_a_server_refuses_a_damaged_store_and_starts_no_new_cluster(
    tmp_path: Path, spoil: Callable[[Path], object], story: str
) -> None:
    with Running(tmp_path) as cluster:
        server = cluster.start_server()
        make_work(cluster)
        server.kill()
        spoil(tmp_path / "server0")
        text = refusal(cluster)
        assert any(part in text for part in story.split("|")), text
        assert "mandor recover" in text


def test_recover_reports_first_then_rebuilds_from_the_file_and_the_backup(tmp_path: Path) -> None:
    with Running(tmp_path) as cluster:
        server = cluster.start_server()
        make_work(cluster, 40)
        home, saved = tmp_path / "server0", tmp_path / "mandor-20260101T000000Z.backup"
        assert cluster.mandor("backup", str(saved)).returncode == 0
        before = cluster.call("GET", "/v1")[1]["cluster"]
        cluster.apply("kind: namespace\nname: late\n")
        everything = names(cluster)
        server.end()
        data = bytearray((home / "state.db").read_bytes())
        place = data.index(b'"name":"team-7"')
        data[place + 8] ^= 1
        (home / "state.db").write_bytes(data)
        assert "is damaged at" in refusal(cluster)

        command = ["recover", "--data", str(home), "--backup-dir", str(tmp_path)]
        shown = cluster.mandor(*command)
        assert shown.returncode == 0, shown.stderr
        assert "damaged: namespace//team-7" in shown.stdout
        assert "nothing was written" in shown.stderr
        damaged = (home / "state.db").read_bytes()
        done = cluster.mandor(*command, "--yes")
        assert done.returncode == 0, done.stderr
        assert [path for path in home.glob("state.db.damaged-*") if path.read_bytes() == damaged]

        server.start()
        cluster.wait_ready()
        assert names(cluster) == everything
        after = cluster.call("GET", "/v1")[1]["cluster"]
        assert (after["id"], after["epoch"]) == (before["id"], before.get("epoch", 1) + 1)


def test_recover_reads_the_log_behind_a_flipped_bit(tmp_path: Path) -> None:
    with Running(tmp_path) as cluster:
        server = cluster.start_server()
        make_work(cluster, 30)
        everything = names(cluster)
        server.kill()
        home = tmp_path / "server0"
        data = bytearray((home / "state.db-wal").read_bytes())
        data[32 + 24 + 200] ^= 1  # in the first page of the log, at an unused place
        (home / "state.db-wal").write_bytes(data)
        assert "mandor recover" in refusal(cluster)
        done = cluster.mandor("recover", "--data", str(home), "--yes")
        assert done.returncode == 0, done.stderr + done.stdout
        assert "behind a damaged place" in done.stdout
        server.start()
        cluster.wait_ready()
        assert names(cluster) == everything


def test_a_lost_store_is_rebuilt_from_the_newest_good_backup(tmp_path: Path) -> None:
    with Running(tmp_path) as cluster:
        server = cluster.start_server()
        make_work(cluster)
        saved = tmp_path / "mandor-20260101T000000Z.backup"
        assert cluster.mandor("backup", str(saved)).returncode == 0
        (tmp_path / "mandor-20260202T000000Z.backup").write_bytes(saved.read_bytes()[:-20])  # newer, and cut off
        everything = names(cluster)
        server.kill()
        home = tmp_path / "server0"
        delete(home)
        done = cluster.mandor("recover", "--data", str(home), "--backup-dir", str(tmp_path), "--yes")
        assert done.returncode == 0, done.stderr
        server.start()
        cluster.wait_ready()
        assert names(cluster) == everything


def test_servers_on_etcd_refuse_an_older_or_another_store(tmp_path: Path, etcd: Etcd) -> None:
    prefix = etcd.prefix()
    with Running(tmp_path, store=f"etcd://{etcd.endpoints[0]}{prefix}") as cluster:
        server = cluster.start_server()
        make_work(cluster)
        server.end()
        marker = tmp_path / "server0" / "cluster.marker"
        known = read_marker(marker)
        assert known is not None

        server.env["MANDOR_STORE"] = f"etcd://{etcd.endpoints[0]}{etcd.prefix()}"
        assert "the store is empty; it held cluster" in refusal(cluster)

        server.env["MANDOR_STORE"] = f"etcd://{etcd.endpoints[0]}{prefix}"
        Marker(marker, MarkerContent(cluster="another", epoch=1, revision=1)).close()
        assert "belongs to cluster another" in refusal(cluster)

        later = MarkerContent(cluster=known.cluster, epoch=known.epoch, revision=known.revision + 1000)
        Marker(marker, later).close()
        text = refusal(cluster)
        assert "the store is older than it was" in text
        assert "--accept-older-store" in text

        server.env["MANDOR_ACCEPT_OLDER_STORE"] = "true"
        server.start()
        cluster.wait_ready()
        assert "team-1" in names(cluster)
        again = read_marker(marker)
        assert again is not None
        assert again.epoch == known.epoch + 1, "agents reject lists with a lower revision of the same epoch"
