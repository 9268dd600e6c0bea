"""Conformance suite for stores. Subclass `StoreSuite`, define a `store` fixture, run pytest.

class TestMyStore(StoreSuite):
    @pytest.fixture
    async def store(self):
        async with MyStore(...) as store:
            yield store
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise

import msgspec
import pytest

from mandor.errors import Conflict, Expired, Invalid
from mandor.model.audit import Audit
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodeSpec
from mandor.model.record import Session, SessionSpec
from mandor.model.workload import Workload, WorkloadSpec
from mandor.store.base import ALL, WRITES_MOST, Change, Check, Delete, Filter, Put, Store, Write

WAIT_SECONDS = 30.0


def make_node(name: str, *, pool: str = "default", **labels: str) -> Node:
    return Node(meta=Meta(name=name, labels=labels), spec=NodeSpec(pool=pool))


def make_instance(name: str, *, node: str = "", namespace: str = "default", index: int = 0) -> Instance:
    spec = InstanceSpec(workload=name.rsplit("-", 1)[0], release="web.1", index=index, node=node)
    return Instance(meta=Meta(name=name, namespace=namespace), spec=spec)


def make_workload(name: str, *, namespace: str = "default", **labels: str) -> Workload:
    from mandor.model.codec import from_plain

    spec = from_plain({"groups": {"main": {"tasks": {"main": {"command": ["sleep", "1"]}}}}}, WorkloadSpec)
    return Workload(meta=Meta(name=name, namespace=namespace, labels=labels), spec=spec)


async def read_node(store: Store, name: str) -> Node:
    found = await store.get(Key("node", "", name))
    assert isinstance(found, Node), f"no node {name}"
    return found


class Watcher:
    """Reads a watch in the background and remembers all it saw."""

    def __init__(self, store: Store, kind: str | None, *, since: int, where: Filter = ALL) -> None:
        self.changes: list[Change] = []
        self.bookmarks: list[int] = []
        self._watch = store.watch(kind, since=since, where=where)
        self._task = asyncio.create_task(self._read(self._watch))

    async def _read(self, watch: AsyncIterator[Sequence[Change]]) -> None:
        async for batch in watch:
            for change in batch:
                if change.bookmark:
                    self.bookmarks.append(change.revision)
                elif change.key.kind != Audit.kind:  # a store behind a server records each commit
                    self.changes.append(change)

    async def count(self, wanted: int) -> list[Change]:
        """Wait for so many changes; more than that is a failure."""
        await self.until(lambda: len(self.changes) >= wanted)
        assert len(self.changes) == wanted, self.changes
        return self.changes

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not done():
                if self._task.done():
                    self._task.result()
                    raise AssertionError("the watch ended")
                await asyncio.sleep(0.005)

    async def __aenter__(self) -> "Watcher":
        # The first bookmark says that the watch stands.
        await self.until(lambda: bool(self.bookmarks))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def seen(changes: Sequence[Change]) -> list[tuple[str, str]]:
    """Return the kind and key of each change."""
    words = []
    for change in changes:
        verb = "created" if change.before is None else "deleted" if change.after is None else "changed"
        words.append((verb, change.key.name))
    return words


class StoreSuite:
    """Promises of `mandor.store.base`, one test each."""

    # get and list

    async def test_an_unknown_key_is_none(self, store: Store) -> None:
        assert await store.get(Key("node", "", "nobody")) is None

    async def test_an_empty_kind_lists_nothing(self, store: Store) -> None:
        assert list((await store.list("node")).items) == []

    async def test_what_was_committed_can_be_read(self, store: Store) -> None:
        await store.commit(Put(make_node("n1", zone="a")))
        found = await read_node(store, "n1")
        assert found.spec == NodeSpec()
        assert found.labels == {"zone": "a"}

    async def test_several_are_read_as_each_of_them_would_be(self, store: Store) -> None:
        await store.commit(Put(make_node("n1")), Put(make_node("n2")))
        keys = [Key("node", "", name) for name in ("n2", "n3", "n1")]
        assert await store.get_all([]) == []
        assert list(await store.get_all(keys)) == [await store.get(key) for key in keys]

    async def test_a_list_is_ordered_by_key(self, store: Store) -> None:
        names = [f"n{number}" for number in range(30)]
        random.Random(7).shuffle(names)
        for name in names:
            await store.commit(Put(make_node(name)))
        listing = await store.list("node")
        assert [item.meta.name for item in listing.items] == sorted(names)

    async def test_namespaces_stand_in_order_even_if_one_is_the_beginning_of_another(self, store: Store) -> None:
        spaces = ["a-b", "a", "a.b", "ab"]
        await store.commit(*[Put(make_workload("web", namespace=space)) for space in spaces])
        listing = await store.list("workload")
        assert [item.meta.namespace for item in listing.items] == sorted(spaces)

    async def test_a_list_has_only_its_kind(self, store: Store) -> None:
        await store.commit(Put(make_node("n1")), Put(make_workload("web")))
        assert [item.kind for item in (await store.list("node")).items] == ["node"]
        kinds = [item.kind for item in (await store.list(None)).items]
        assert [kind for kind in kinds if kind != Audit.kind] == ["node", "workload"]

    async def test_a_list_by_namespace_node_and_labels_has_only_what_matches(self, store: Store) -> None:
        await store.commit(
            Put(make_workload("web", namespace="a", tier="front")),
            Put(make_workload("api", namespace="a", tier="back")),
            Put(make_workload("web", namespace="b", tier="front")),
            Put(make_instance("web-0", namespace="a", node="n1")),
            Put(make_instance("web-1", namespace="a", node="n2")),
            Put(make_instance("web-2", namespace="a")),
            Put(make_instance("web-0", namespace="b", node="n1")),
        )

        async def names(kind: str, where: Filter) -> list[str]:
            return [f"{item.meta.namespace}/{item.meta.name}" for item in (await store.list(kind, where)).items]

        assert await names("workload", Filter(namespace="a")) == ["a/api", "a/web"]
        assert await names("workload", Filter(labels={"tier": "front"})) == ["a/web", "b/web"]
        assert await names("workload", Filter(namespace="b", labels={"tier": "back"})) == []
        assert await names("instance", Filter(node="n1")) == ["a/web-0", "b/web-0"]
        assert await names("instance", Filter(node="n1", namespace="b")) == ["b/web-0"]
        assert await names("instance", Filter(node="")) == ["a/web-2"]

    async def test_several_kinds_come_in_one_list_and_one_watch(self, store: Store) -> None:
        where = Filter(node="n1", kinds=frozenset({"node", "instance"}))
        await store.commit(Put(make_node("n1")), Put(make_node("n2")), Put(make_instance("web-0", node="n1")))
        listing = await store.list(None, where)
        assert [item.key for item in listing.items] == [Key("instance", "default", "web-0"), Key("node", "", "n1")]
        async with Watcher(store, None, since=listing.revision, where=where) as watcher:
            spec = SessionSpec(verb="logs", node="n1", server="http://s", secret="x")
            await store.commit(
                Put(Session(meta=Meta(name="s1", namespace="default"), spec=spec)),
                Put(make_instance("web-1", node="n1")),
            )
            await store.commit(Put(make_instance("web-2", node="n2")))
            node = await store.get(Key("node", "", "n1"))
            assert node is not None
            await store.commit(Put(node.changed(meta=msgspec.structs.replace(node.meta, labels={"zone": "a"}))))
            assert seen(await watcher.count(2)) == [("created", "web-1"), ("changed", "n1")]

    async def test_a_listing_does_not_change_afterwards(self, store: Store) -> None:
        await store.commit(Put(make_node("n1")))
        listing = await store.list("node")
        await store.commit(Put(make_node("n2")), Delete(Key("node", "", "n1"), listing.items[0].meta.version))
        assert [item.meta.name for item in listing.items] == ["n1"]

    # commit

    async def test_a_commit_raises_the_revision_and_its_objects_carry_it(self, store: Store) -> None:
        first = await store.commit(Put(make_node("n1")))
        second = await store.commit(Put(make_node("n2")), Put(make_node("n3")))
        assert second > first > 0
        assert (await read_node(store, "n1")).meta.version == first
        assert (await read_node(store, "n2")).meta.version == second
        assert (await read_node(store, "n3")).meta.version == second
        assert (await store.list("node")).revision >= second

    async def test_the_store_gives_uid_and_time_once(self, store: Store) -> None:
        await store.commit(Put(make_node("n1")))
        new = await read_node(store, "n1")
        assert new.meta.uid
        assert new.meta.created_at > 0
        await store.commit(Put(new.changed(spec=NodeSpec(pool="gpu"))))
        changed = await read_node(store, "n1")
        assert changed.spec.pool == "gpu"
        assert changed.meta.uid == new.meta.uid
        assert changed.meta.created_at == new.meta.created_at

    async def test_an_object_made_again_has_another_uid(self, store: Store) -> None:
        await store.commit(Put(make_node("n1")))
        first = await read_node(store, "n1")
        await store.commit(Delete(first.key, first.meta.version))
        await store.commit(Put(make_node("n1")))
        assert (await read_node(store, "n1")).meta.uid != first.meta.uid

    async def test_a_put_without_uid_over_an_object_replaces_it_by_another(self, store: Store) -> None:
        await store.commit(Put(make_instance("web-0", node="n1")))
        old = await store.get(Key("instance", "default", "web-0"))
        assert old is not None
        fresh = make_instance("web-0")
        meta = Meta(name="web-0", namespace="default", version=old.meta.version)
        await store.commit(Put(fresh.changed(meta=meta)))
        new = await store.get(old.key)
        assert new is not None
        assert new.meta.uid not in {"", old.meta.uid}
        assert new.node == ""

    async def test_a_put_with_somebody_elses_uid_is_refused(self, store: Store) -> None:
        await store.commit(Put(make_node("n1")))
        read = await read_node(store, "n1")
        forged = Meta(name="n1", uid="0" * 20, version=read.meta.version)
        with pytest.raises(Invalid):
            await store.commit(Put(read.changed(meta=forged)))
        assert await read_node(store, "n1") == read

    async def test_a_uid_that_comes_with_a_new_object_is_kept(self, store: Store) -> None:
        brought = Node(meta=Meta(name="n1", uid="a" * 20, created_at=5.0))
        await store.commit(Put(brought))
        found = await read_node(store, "n1")
        assert (found.meta.uid, found.meta.created_at) == ("a" * 20, 5.0)

    async def test_a_new_object_must_be_new(self, store: Store) -> None:
        version = await store.commit(Put(make_node("n1", zone="a")))
        with pytest.raises(Conflict) as caught:
            await store.commit(Put(make_node("n1", zone="b")))
        assert caught.value.facts == {"key": Key("node", "", "n1"), "version": version}
        assert (await read_node(store, "n1")).labels == {"zone": "a"}

    async def test_the_loser_of_a_race_changes_nothing(self, store: Store) -> None:
        await store.commit(Put(make_node("n0")))
        read = await read_node(store, "n0")
        won = await store.commit(Put(read))
        with pytest.raises(Conflict) as caught:
            await store.commit(Put(make_node("n1")), Put(read))
        assert caught.value.facts["version"] == won
        assert await store.get(Key("node", "", "n1")) is None

    async def test_of_many_racers_exactly_one_wins(self, store: Store) -> None:
        await store.commit(Put(make_node("n0")))
        read = await read_node(store, "n0")
        racers = [read.changed(spec=NodeSpec(pool=f"p{number}")) for number in range(20)]
        results = await asyncio.gather(*[store.commit(Put(racer)) for racer in racers], return_exceptions=True)
        won = [number for number, result in enumerate(results) if isinstance(result, int)]
        assert len(won) == 1
        assert all(isinstance(result, int | Conflict) for result in results), results
        after = await read_node(store, "n0")
        assert after.spec.pool == f"p{won[0]}"
        assert after.meta.version == results[won[0]]

    async def test_a_loser_can_read_at_once_what_won(self, store: Store) -> None:
        await store.commit(Put(make_node("n0")))
        read = await read_node(store, "n0")

        async def race(number: int) -> bool:
            try:
                await store.commit(Put(read.changed(spec=NodeSpec(pool=f"p{number}"))))
            except Conflict:
                assert (await read_node(store, "n0")).meta.version > read.meta.version
                return False
            return True

        assert sum(await asyncio.gather(*[race(number) for number in range(10)])) == 1

    async def test_counting_with_retries_loses_no_step(self, store: Store) -> None:
        await store.commit(Put(make_node("n0", count="0")))

        async def step() -> None:
            while True:
                read = await read_node(store, "n0")
                meta = Meta(
                    name="n0",
                    uid=read.meta.uid,
                    version=read.meta.version,
                    labels={"count": str(int(read.labels["count"]) + 1)},
                )
                try:
                    await store.commit(Put(read.changed(meta=meta)))
                except Conflict:
                    continue
                return

        await asyncio.gather(*[step() for _ in range(10)])
        assert (await read_node(store, "n0")).labels["count"] == "10"

    async def test_a_delete_removes_only_the_version_it_names(self, store: Store) -> None:
        version = await store.commit(Put(make_node("n1")))
        with pytest.raises(Conflict):
            await store.commit(Delete(Key("node", "", "n1"), version - 1))
        assert await store.get(Key("node", "", "n1")) is not None
        revision = await store.commit(Delete(Key("node", "", "n1"), version))
        assert revision > version
        assert await store.get(Key("node", "", "n1")) is None
        assert list((await store.list("node")).items) == []

    async def test_deleting_what_is_not_there_is_a_conflict(self, store: Store) -> None:
        for version in (0, 1):
            with pytest.raises(Conflict):
                await store.commit(Delete(Key("node", "", "nobody"), version))

    async def test_a_put_over_a_deleted_object_is_a_conflict(self, store: Store) -> None:
        await store.commit(Put(make_node("n1")))
        read = await read_node(store, "n1")
        await store.commit(Delete(read.key, read.meta.version))
        with pytest.raises(Conflict) as caught:
            await store.commit(Put(read))
        assert caught.value.facts["version"] == 0

    async def test_a_check_that_holds_lets_the_commit_through_and_writes_nothing(self, store: Store) -> None:
        version = await store.commit(Put(make_node("n1")))
        await store.commit(Check(Key("node", "", "n1"), version), Check(Key("node", "", "n9"), 0), Put(make_node("n2")))
        assert (await read_node(store, "n1")).meta.version == version
        assert await store.get(Key("node", "", "n2")) is not None

    async def test_a_check_that_fails_stops_the_commit(self, store: Store) -> None:
        version = await store.commit(Put(make_node("n1")))
        for check in (
            Check(Key("node", "", "n1"), version + 1),
            Check(Key("node", "", "n1"), 0),
            Check(Key("node", "", "n9"), version),
        ):
            with pytest.raises(Conflict) as caught:
                await store.commit(check, Put(make_node("n2")))
            assert caught.value.facts["key"] == check.key
        assert await store.get(Key("node", "", "n2")) is None

    async def test_checks_alone_change_no_revision(self, store: Store) -> None:
        version = await store.commit(Put(make_node("n1")))
        await store.commit(Check(Key("node", "", "n1"), version))
        with pytest.raises(Conflict):
            await store.commit(Check(Key("node", "", "n1"), version + 1))
        assert (await read_node(store, "n1")).meta.version == version

    async def test_a_hundred_writes_and_a_check_are_one_commit(self, store: Store) -> None:
        fence = await store.commit(Put(make_node("fence")))
        writes: list[Write] = [Put(make_instance(f"web-{number}")) for number in range(WRITES_MOST)]
        revision = await store.commit(*writes, Check(Key("node", "", "fence"), fence))
        listing = await store.list("instance")
        assert {item.meta.version for item in listing.items} == {revision}
        assert len(listing.items) == WRITES_MOST

    async def test_a_commit_too_large_empty_or_naming_a_key_twice_is_refused(self, store: Store) -> None:
        for writes in (
            [Put(make_instance(f"web-{number}")) for number in range(WRITES_MOST + 1)],
            [],
            [Put(make_node("n1")), Delete(Key("node", "", "n1"), 1)],
        ):
            with pytest.raises(Invalid):
                await store.commit(*writes)
        assert list((await store.list(None)).items) == []

    async def test_many_writers_at_once_all_get_through(self, store: Store) -> None:
        revisions = await asyncio.gather(*[store.commit(Put(make_node(f"n{number}"))) for number in range(200)])
        assert len(set(revisions)) == 200
        assert len((await store.list("node")).items) == 200

    async def test_text_of_any_language_comes_back_as_it_was(self, store: Store) -> None:
        labels = {"note": 'mandor – pelaksana, 工头, "quoted" \\ and \u0000 \U0001f477'}
        await store.commit(Put(make_node("n1", **labels)))
        assert (await read_node(store, "n1")).labels == labels

    # watch

    async def test_a_watcher_sees_each_change_in_order_once(self, store: Store) -> None:
        start = (await store.list(None)).revision
        async with Watcher(store, "node", since=start) as watcher:
            await store.commit(Put(make_node("n1")))
            read = await read_node(store, "n1")
            await store.commit(Put(read.changed(spec=NodeSpec(pool="gpu"))))
            read = await read_node(store, "n1")
            await store.commit(Delete(read.key, read.meta.version))
            changes = await watcher.count(3)
        assert seen(changes) == [("created", "n1"), ("changed", "n1"), ("deleted", "n1")]
        created, changed, deleted = changes
        assert created.after == changed.before
        assert changed.after == deleted.before == read
        assert start < created.revision < changed.revision < deleted.revision
        assert created.after is not None
        assert created.after.meta.version == created.revision

    async def test_a_replaced_object_is_one_change_from_uid_to_uid(self, store: Store) -> None:
        start = await store.commit(Put(make_node("n1")))
        old = await read_node(store, "n1")
        await store.commit(Put(make_node("n1").changed(meta=Meta(name="n1", version=old.meta.version))))
        async with Watcher(store, "node", since=start) as watcher:
            (change,) = await watcher.count(1)
        assert change.before is not None
        assert change.after is not None
        assert change.before.meta.uid != change.after.meta.uid

    async def test_a_watch_begins_where_it_is_reported(self, store: Store) -> None:
        revisions = [await store.commit(Put(make_node(f"n{number}"))) for number in range(10)]
        for position in (0, 4, 9):
            async with Watcher(store, "node", since=revisions[position]) as watcher:
                changes = await watcher.count(9 - position)
            assert [change.revision for change in changes] == revisions[position + 1 :]

    async def test_list_then_watch_misses_and_repeats_nothing(self, store: Store) -> None:
        async def write() -> None:
            for number in range(60):
                await store.commit(Put(make_node(f"n{number:02}")))

        writing = asyncio.create_task(write())
        await asyncio.sleep(0.002)
        listing = await store.list("node")
        known = [item.meta.name for item in listing.items]
        async with Watcher(store, "node", since=listing.revision) as watcher:
            await writing
            changes = await watcher.count(60 - len(known))
        assert sorted(known + [change.key.name for change in changes]) == [f"n{number:02}" for number in range(60)]

    async def test_a_watch_resumed_anywhere_goes_on_without_gap_or_repeat(self, store: Store) -> None:
        since = (await store.list(None)).revision
        names: list[str] = []
        for number in range(20):
            await store.commit(Put(make_node(f"n{number:02}")))
            if number % 3 == 0:
                async with Watcher(store, "node", since=since) as watcher:
                    await watcher.until(lambda: watcher.changes[-1:] != [])
                    names += [change.key.name for change in watcher.changes]
                    since = watcher.changes[-1].revision
        async with Watcher(store, "node", since=since) as watcher:
            names += [change.key.name for change in await watcher.count(19 - int(names[-1][1:]))]
        assert names == [f"n{number:02}" for number in range(20)]

    async def test_every_watcher_sees_the_same_order(self, store: Store) -> None:
        start = (await store.list(None)).revision
        async with (
            Watcher(store, None, since=start) as one,
            Watcher(store, None, since=start) as two,
            Watcher(store, "node", since=start) as nodes,
        ):
            await asyncio.gather(
                *[store.commit(Put(make_node(f"n{number}")), Put(make_workload(f"w{number}"))) for number in range(40)]
            )
            first, second = await one.count(80), await two.count(80)
            third = await nodes.count(40)
        orders = [[(change.revision, change.key) for change in changes] for changes in (first, second, third)]
        assert orders[0] == orders[1]
        assert orders[2] == [entry for entry in orders[0] if entry[1].kind == "node"]
        assert all(early.revision <= late.revision for early, late in pairwise(first))

    async def test_the_writes_of_a_commit_share_a_revision_in_the_watch(self, store: Store) -> None:
        start = (await store.list(None)).revision
        async with Watcher(store, None, since=start) as watcher:
            revision = await store.commit(*[Put(make_node(f"n{number}")) for number in range(WRITES_MOST)])
            changes = await watcher.count(WRITES_MOST)
        assert {change.revision for change in changes} == {revision}

    async def test_a_watch_by_kind_sees_no_other(self, store: Store) -> None:
        start = (await store.list(None)).revision
        async with Watcher(store, "workload", since=start) as watcher:
            await store.commit(Put(make_node("n1")))
            await store.commit(Put(make_workload("web")))
            assert seen(await watcher.count(1)) == [("created", "web")]

    async def test_entering_a_filter_looks_like_creation_and_leaving_it_like_deletion(self, store: Store) -> None:
        start = (await store.list(None)).revision
        key = Key("instance", "default", "web-0")

        async def bind(node: str) -> None:
            found = await store.get(key)
            assert isinstance(found, Instance)
            await store.commit(Put(found.bound(node, at=1.0)))

        async with (
            Watcher(store, "instance", since=start, where=Filter(node="n1")) as first,
            Watcher(store, "instance", since=start, where=Filter(node="n2")) as second,
            Watcher(store, "instance", since=start, where=Filter(node="")) as unbound,
        ):
            await store.commit(Put(make_instance("web-0")))
            await bind("n1")
            await bind("n2")
            assert seen(await second.count(1)) == [("created", "web-0")]
            assert seen(await first.count(2)) == [("created", "web-0"), ("deleted", "web-0")]
            assert seen(await unbound.count(2)) == [("created", "web-0"), ("deleted", "web-0")]
        assert first.changes[1].before is not None
        assert first.changes[1].before.node == "n1"

    async def test_a_resumed_filtered_watch_shows_what_left_the_filter(self, store: Store) -> None:
        start = await store.commit(Put(make_instance("web-0", node="n1")))
        found = await store.get(Key("instance", "default", "web-0"))
        assert isinstance(found, Instance)
        await store.commit(Put(found.bound("n2", at=1.0)))
        async with Watcher(store, "instance", since=start, where=Filter(node="n1")) as watcher:
            assert seen(await watcher.count(1)) == [("deleted", "web-0")]

    async def test_a_watch_by_namespace_and_label_sees_only_what_matches(self, store: Store) -> None:
        start = (await store.list(None)).revision
        where = Filter(namespace="a", labels={"tier": "front"})
        async with Watcher(store, "workload", since=start, where=where) as watcher:
            await store.commit(Put(make_workload("api", namespace="a", tier="back")))
            await store.commit(Put(make_workload("web", namespace="b", tier="front")))
            await store.commit(Put(make_workload("web", namespace="a", tier="front")))
            found = await store.get(Key("workload", "a", "web"))
            assert found is not None
            meta = Meta(name="web", namespace="a", uid=found.meta.uid, version=found.meta.version)
            await store.commit(Put(found.changed(meta=meta)))
            changes = await watcher.count(2)
        assert seen(changes) == [("created", "web"), ("deleted", "web")]

    async def test_a_watch_begins_with_a_bookmark_even_if_nothing_happens(self, store: Store) -> None:
        revision = await store.commit(Put(make_node("n1")))
        async with Watcher(store, "workload", since=revision) as watcher:
            assert watcher.bookmarks[0] >= revision
            assert watcher.changes == []

    async def test_a_bookmark_is_a_place_to_resume_from(self, store: Store) -> None:
        start = (await store.list(None)).revision
        for number in range(5):
            await store.commit(Put(make_node(f"n{number}")))
        async with Watcher(store, "workload", since=start) as watcher:
            place = watcher.bookmarks[0]
        await store.commit(Put(make_workload("web")))
        async with Watcher(store, "workload", since=place) as watcher:
            assert seen(await watcher.count(1)) == [("created", "web")]

    async def test_a_revision_the_store_never_had_is_expired(self, store: Store) -> None:
        revision = await store.commit(Put(make_node("n1")))
        with pytest.raises(Expired):
            async for _ in store.watch("node", since=revision + 1_000_000):
                pass

    async def test_a_commit_that_returned_is_in_the_next_watch_and_list(self, store: Store) -> None:
        for number in range(10):
            before = (await store.list("node")).revision
            revision = await store.commit(Put(make_node(f"n{number}")))
            listing = await store.list("node")
            assert listing.revision >= revision > before
            assert len(listing.items) == number + 1
            async with Watcher(store, "node", since=before) as watcher:
                assert [change.revision for change in watcher.changes] == [revision]
