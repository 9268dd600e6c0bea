"""SqliteStore and its file: restarts, a second process, damage, a full disk, a slow one."""

import asyncio
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from mandor.errors import Conflict, Expired, Invalid, TooLarge, Unavailable
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodeSpec
from mandor.store.base import Check, Delete, Put, Write
from mandor.store.sqlite import SqliteStore
from mandor.store.state_file import StateFile
from mandor.testing.store import Watcher, make_instance, make_node, make_workload, read_node


@pytest.mark.req("S0-26", "S2-3", "S0-18")
async def test_a_restart_brings_back_every_object_and_binding(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.db"
    async with await SqliteStore.open(path) as store:
        await store.commit(Put(make_instance("web-0")), Put(make_workload("web", tier="front")), Put(make_node("n1")))
        found = await store.get(Key("instance", "default", "web-0"))
        assert isinstance(found, Instance)
        revision = await store.commit(Put(found.bound("n1", at=7.0)))
        before = await store.list(None)
    async with await SqliteStore.open(path) as store:
        assert list((await store.list(None)).items) == list(before.items)
        assert store.index.revision == revision
        bound = await store.get(Key("instance", "default", "web-0"))
        assert isinstance(bound, Instance)
        assert bound.spec.node == "n1"


async def test_the_revision_never_goes_back_even_if_the_last_commit_was_a_delete(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        version = await store.commit(Put(make_node("n1")))
        last = await store.commit(Delete(Key("node", "", "n1"), version))
    async with await SqliteStore.open(path) as store:
        assert store.index.revision == last
        assert await store.commit(Put(make_node("n1"))) > last


async def test_a_replaced_object_leaves_no_trace_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        for _ in range(3):
            found = await store.get(Key("node", "", "n1"))
            version = found.meta.version if found is not None else 0
            await store.commit(Put(make_node("n1").changed(meta=Meta(name="n1", version=version))))
        last = await read_node(store, "n1")
    async with await SqliteStore.open(path) as store:
        assert list((await store.list("node")).items) == [last]


async def test_two_objects_with_one_uid_do_not_overwrite_each_other(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        for name in ("n1", "n2"):
            await store.commit(Put(Node(meta=Meta(name=name, uid="a" * 24))))
    async with await SqliteStore.open(path) as store:
        assert len((await store.list("node")).items) == 2


async def test_objects_that_come_and_go_within_one_batch_end_as_they_should(
    tmp_path: Path, hanging: threading.Event
) -> None:
    """All of these share a transaction: put and deleted, deleted and put again, even with the same uid."""
    path = tmp_path / "state.db"
    uid = "a" * 24
    async with await SqliteStore.open(path) as store:
        version = await store.commit(*[Put(Node(meta=Meta(name=name, uid=uid))) for name in ("back", "gone")])
        hanging.clear()
        blocker = asyncio.create_task(store.commit(Put(make_node("blocker"))))
        await asyncio.sleep(0.05)
        steps: list[list[Write]] = [
            [Delete(Key("node", "", "back"), version), Delete(Key("node", "", "gone"), version)],
            [Put(make_node("new"))],
        ]
        tasks = []
        for step in steps:
            tasks.append(asyncio.create_task(store.commit(*step)))
            await asyncio.sleep(0)
        # The store's own view is ahead of what can be read: the name is free again.
        tasks.append(asyncio.create_task(store.commit(Put(Node(meta=Meta(name="back", uid=uid, labels={"n": "2"}))))))
        await asyncio.sleep(0)
        hanging.set()
        await asyncio.gather(blocker, *tasks)
        names = [item.meta.name for item in (await store.list("node")).items]
        assert names == ["back", "blocker", "new"]
        kept = await store.list(None)
    async with await SqliteStore.open(path) as store:
        assert list((await store.list(None)).items) == list(kept.items)
        assert (await read_node(store, "back")).labels == {"n": "2"}


async def test_a_watch_from_before_the_restart_is_expired_unless_nothing_happened(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        first = await store.commit(Put(make_node("n1")))
        last = await store.commit(Put(make_node("n2")))
    async with await SqliteStore.open(path) as store:
        async with Watcher(store, "node", since=last) as watcher:
            await store.commit(Put(make_node("n3")))
            assert [change.key.name for change in await watcher.count(1)] == ["n3"]
        with pytest.raises(Expired):
            async for _ in store.watch("node", since=first):
                pass


# Who else wants the file.


async def test_a_second_store_on_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        await store.commit(Put(make_node("n1")))
        with pytest.raises(Unavailable, match=f"process {os.getpid()}"):
            await SqliteStore.open(path)
        await store.commit(Put(make_node("n2")))
    async with await SqliteStore.open(path) as store:
        assert len((await store.list("node")).items) == 2


async def test_a_second_process_on_the_file_is_refused_with_the_first_ones_id(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    code = (
        "import asyncio, sys\n"
        "from mandor.errors import Unavailable\n"
        "from mandor.store.sqlite import SqliteStore\n"
        "try:\n"
        "    asyncio.run(SqliteStore.open(sys.argv[1]))\n"
        "except Unavailable as error:\n"
        "    print(error)\n"
    )
    async with await SqliteStore.open(path):
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60
        )
    assert f"in use by process {os.getpid()}" in done.stdout, done


async def test_another_program_cannot_write_to_the_file_in_use(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        await store.commit(Put(make_node("n1")))
        with pytest.raises(sqlite3.OperationalError):
            sqlite3.connect(path, timeout=0).execute("delete from objects")


async def test_the_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        await store.commit(Put(make_node("n1")))
        for name in ("state.db", "state.db-wal"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


# Files that are not ours.


def foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table recipes (name text)")
    connection.close()


def newer(path: Path) -> None:
    StateFile(path).close()
    connection = sqlite3.connect(path)
    connection.execute("pragma user_version=99")
    connection.close()


def unreadable(path: Path) -> None:
    file = StateFile(path)
    file.write(["u/node//n1", b'{"kind":"node","meta":{"name":"n1"},"spec":{"cordoned":"blue"}}'], [], 1)
    file.close()


def torn(path: Path) -> None:
    file = StateFile(path)
    rows = [(f"u{number}/node//n{number}", b"x" * 500) for number in range(500)]
    file.write([value for row in rows for value in row], [], 1)
    file.close()
    data = bytearray(path.read_bytes())
    data[4096 : 4096 * 20] = os.urandom(4096 * 19)
    path.write_bytes(bytes(data))


def without_revision(path: Path) -> None:
    StateFile(path).close()
    connection = sqlite3.connect(path)
    connection.execute("delete from objects")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "story"),
    [
        (lambda path: path.write_bytes(b"not a database" * 1000), "not a database"),
        (foreign, "another program"),
        (newer, "newer mandor"),
        (unreadable, "cannot read"),
        (torn, "malformed|disk image|cannot"),
        (without_revision, "revision is missing"),
    ],
)
async def test_a_file_that_is_not_a_sound_state_is_refused_and_left_alone(
    tmp_path: Path, spoil: object, story: str
) -> None:
    path = tmp_path / "state.db"
    assert callable(spoil)
    spoil(path)
    size = path.stat().st_size
    with pytest.raises(Invalid, match=story) as caught:
        await SqliteStore.open(path)
    assert caught.value.hint
    assert path.stat().st_size == size
    with pytest.raises(Invalid):  # and its lock is free again
        await SqliteStore.open(path)


async def test_objects_of_a_kind_from_a_later_version_are_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.db"
    file = StateFile(path)
    file.write(["u/spaceship//s1", b'{"kind":"spaceship"}'], [], 5)
    file.close()
    async with await SqliteStore.open(path) as store:
        assert list((await store.list(None)).items) == []
        assert "spaceship" in caplog.text
        await store.commit(Put(make_node("n1")))
    connection = sqlite3.connect(path)
    assert connection.execute("select count(*) from objects where key like '%spaceship%'").fetchone() == (1,)
    connection.close()


async def test_a_folder_instead_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        await SqliteStore.open(tmp_path)
    assert caught.value.hint


async def test_an_object_over_its_bound_is_refused(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "state.db") as store:
        large = {f"key{number}": "x" * 256 for number in range(64)}
        many = make_node("n1", **large)
        await store.commit(Put(many))
        giant = make_workload("web")
        tasks = giant.spec.groups["main"].tasks["main"]
        task = msgspec.structs.replace(tasks, env={"X": "x" * (1 << 20)})
        group = msgspec.structs.replace(giant.spec.groups["main"], tasks={"main": task})
        spec = msgspec.structs.replace(giant.spec, groups={"main": group})
        with pytest.raises(TooLarge):
            await store.commit(Put(giant.changed(spec=spec)))
        await store.commit(Put(make_workload("web")))


# A full disk.


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("a small disk can only be mounted as root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "mandor-test", str(folder)],
        check=False,
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def fill(store: SqliteStore) -> int:
    """Write until the disk is full; how many objects were acknowledged."""
    failure: Unavailable | None = None
    for number in range(100_000):
        try:
            await store.commit(Put(make_node(f"n{number}", filler="x" * 200)))
        except Unavailable as error:
            failure = error
            break
    assert failure is not None, "the disk never filled up"
    assert "full" in str(failure)
    assert failure.hint
    return number


def large_commit(prefix: str) -> list[Put]:
    """More than fits into what a failed write has left."""
    return [Put(make_node(f"{prefix}-{number}", filler="x" * 200)) for number in range(50)]


async def test_on_a_full_disk_commits_fail_reads_go_on_and_it_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    path = small_disk / "state.db"
    async with await SqliteStore.open(path) as store:
        await store.commit(Put(make_node("first")))
        ballast.write_bytes(b"x" * (1 << 20))
        start = store.index.revision
        async with Watcher(store, "node", since=start) as watcher:
            stored = await fill(store)
            revision = store.index.revision

            # Every further writer is told the same, alone or together, and nothing becomes visible.
            results = await asyncio.gather(
                *[store.commit(*large_commit(f"late{number}")) for number in range(20)], return_exceptions=True
            )
            assert all(isinstance(result, Unavailable) for result in results), results
            assert store.index.revision == revision
            assert len((await store.list("node")).items) == stored + 1
            assert await store.get(Key("node", "", "late0-0")) is None
            assert (await read_node(store, "first")).meta.name == "first"

            ballast.unlink()
            after = await store.commit(Put(make_node("late0")))
            assert after > revision
            await watcher.count(stored + 1)
        kept = await store.list(None)
    async with await SqliteStore.open(path) as store:
        assert list((await store.list(None)).items) == list(kept.items)
        assert store.index.revision == kept.revision


async def test_a_conflict_with_a_commit_that_failed_is_retried(small_disk: Path) -> None:
    """Two writers want one object; the first one's disk is full, so the second must not get `Conflict` forever."""
    ballast = small_disk / "ballast"
    async with await SqliteStore.open(small_disk / "state.db") as store:
        await store.commit(Put(make_node("prize")))
        prize = await read_node(store, "prize")
        ballast.write_bytes(b"x" * (1 << 20))
        await fill(store)
        bids = [
            [Put(prize.changed(spec=NodeSpec(pool=f"bid{number}"))), *large_commit(f"bid{number}")]
            for number in range(5)
        ]
        results = await asyncio.gather(*[store.commit(*bid) for bid in bids], return_exceptions=True)
        assert all(isinstance(result, Unavailable) for result in results), results
        ballast.unlink()
        await store.commit(Put(prize.changed(spec=NodeSpec(pool="won"))))
        assert (await read_node(store, "prize")).spec.pool == "won"


# A slow disk.


class SlowFile(StateFile):
    """A state file on a disk that can be made to hang."""

    gate: threading.Event

    def write(self, puts: list[str | bytes], gone: Sequence[str], revision: int) -> None:
        self.gate.wait(60)
        super().write(puts, gone, revision)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    gate = threading.Event()
    gate.set()
    SlowFile.gate = gate
    monkeypatch.setattr("mandor.store.state_writer.StateFile", SlowFile)
    return gate


async def test_a_disk_that_hangs_is_reported_and_its_commits_show_up_when_it_answers(
    tmp_path: Path, hanging: threading.Event
) -> None:
    async with await SqliteStore.open(tmp_path / "state.db", wait_seconds=0.3) as store:
        revision = await store.commit(Put(make_node("n1")))
        hanging.clear()
        with pytest.raises(Unavailable, match="not known to be stored"):
            await store.commit(Put(make_node("n2")))
        assert await store.get(Key("node", "", "n2")) is None
        hanging.set()
        async with Watcher(store, "node", since=revision) as watcher:
            await watcher.count(1)
        await store.commit(Put(make_node("n3")))


async def test_a_commit_whose_caller_gave_up_is_stored_all_the_same(tmp_path: Path, hanging: threading.Event) -> None:
    async with await SqliteStore.open(tmp_path / "state.db") as store:
        hanging.clear()
        giving_up = asyncio.create_task(store.commit(Put(make_node("n1"))))
        await asyncio.sleep(0)
        giving_up.cancel()
        rival = asyncio.create_task(store.commit(Put(make_node("n1"))))
        other = asyncio.create_task(store.commit(Check(Key("node", "", "n1"), 0), Put(make_node("n2"))))
        await asyncio.sleep(0.05)
        assert not rival.done()
        hanging.set()
        results = await asyncio.gather(giving_up, rival, other, return_exceptions=True)
        assert [type(result) for result in results] == [asyncio.CancelledError, Conflict, Conflict]
        assert await store.get(Key("node", "", "n1")) is not None


async def test_closing_waits_for_commits_in_flight(tmp_path: Path, hanging: threading.Event) -> None:
    path = tmp_path / "state.db"
    store = await SqliteStore.open(path)
    hanging.clear()
    writing = [asyncio.create_task(store.commit(Put(make_node(f"n{number}")))) for number in range(50)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0.05)
    hanging.set()
    await closing
    await asyncio.gather(*writing)
    with pytest.raises(Unavailable):
        await store.commit(Put(make_node("late")))
    async with await SqliteStore.open(path) as store:
        assert len((await store.list("node")).items) == 50


async def test_more_commits_than_fit_wait_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.store.sqlite.FLIGHT_WRITES", 10)
    async with await SqliteStore.open(tmp_path / "state.db") as store:
        revisions = await asyncio.gather(*[store.commit(Put(make_node(f"n{number}"))) for number in range(300)])
        assert sorted(revisions) == list(range(1, 301))


async def test_commits_that_wait_for_a_hanging_disk_fail_after_the_limit(
    tmp_path: Path, hanging: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.store.sqlite.FLIGHT_WRITES", 5)
    async with await SqliteStore.open(tmp_path / "state.db", wait_seconds=0.2) as store:
        hanging.clear()
        results = await asyncio.gather(
            *[store.commit(Put(make_node(f"n{number}"))) for number in range(20)], return_exceptions=True
        )
        assert all(isinstance(result, Unavailable) for result in results)
        hanging.set()
        await store.commit(Put(make_node("late")))


@pytest.mark.req("S0-19")
async def test_what_a_newer_version_wrote_survives_a_restart_with_this_one(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    async with await SqliteStore.open(path) as store:
        await store.commit(Put(make_node("n1")), Put(make_node("n2")))
    with sqlite3.connect(path) as file:
        # Rows without a checksum, as SQL writes them here, are taken as they are.
        bare = "substr(data, 1, length(data) - 9)"
        for name, old, new in (("n1", '"status"', '"colour":1,"status"'), ("n2", '"n2"', '"n2","schema":2')):
            change = f"update objects set data = cast(replace({bare}, ?, ?) as blob) where key like ?"
            file.execute(change, (old, new, f"%{name}"))
    file.close()
    async with await SqliteStore.open(path) as store:
        node = await read_node(store, "n1")
        await store.commit(Put(node.changed(spec=NodeSpec(cordoned=True))))
        with pytest.raises(Invalid, match="schema version 2"):
            await store.commit(Put(await read_node(store, "n2")))
    with sqlite3.connect(path) as file:
        ((data,),) = file.execute("select data from objects where key like '%n1'").fetchall()
    file.close()
    kept = msgspec.json.decode(data[:-9])
    assert (kept["colour"], kept["spec"]) == (1, {"cordoned": True})
