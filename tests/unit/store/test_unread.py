"""The unread changes of all watchers are bounded: the slowest watcher expires and resumes at its revision."""

from pathlib import Path

import msgspec
import pytest

from mandor.errors import Expired
from mandor.model.instance import InstanceStatus
from mandor.model.phase import Phase
from mandor.store.base import ALL, Change, Filter, Put
from mandor.store.index import BUFFER_BYTES_MOST, Index
from mandor.store.sqlite import SqliteStore
from mandor.testing.store import make_instance


def publish(index: Index, count: int) -> None:
    for _ in range(count):
        revision = index.revision + 1
        value = make_instance(f"i-{revision}")
        index.publish([Change(revision, None, value.stamped(version=revision))])


def test_the_watchers_that_are_furthest_behind_are_cut_and_the_others_go_on() -> None:
    index = Index(unread_most=100)
    slow = [index.subscribe("instance", 0) for _ in range(3)]
    reads = index.subscribe("instance", 0)
    seen = 0
    for _ in range(60):
        publish(index, 1)
        seen += len(reads.take())
    assert seen == 60
    assert reads.failure is None
    cut = [each for each in slow if each.failure is not None]
    assert cut
    left = sum(len(each.buffer) for each in slow)
    assert left <= 100 + 100 // 4
    with pytest.raises(Expired, match="all watchers together left more than 100 changes unread") as caught:
        cut[0].take()
    assert caught.value.hint == "list again and watch from there"
    assert index.watchers == 1 + len(slow) - len(cut)


def test_an_expired_watcher_resumes_at_its_revision() -> None:
    index = Index(unread_most=10)
    slow = index.subscribe("instance", 0)
    publish(index, 5)
    known = slow.take()[-1].revision
    publish(index, 20)
    assert slow.failure is not None
    again = index.subscribe("instance", known)
    assert [each.revision for each in again.take()] == list(range(known + 1, index.revision + 1))


def test_watchers_that_read_are_never_cut_however_much_passes() -> None:
    index = Index(unread_most=10)
    reads = [index.subscribe("instance", 0) for _ in range(2)]
    for _ in range(100):
        publish(index, 1)
        assert all(len(each.take()) == 1 for each in reads)


def publish_large(index: Index, size: int, node: str = "") -> None:
    revision = index.revision + 1
    value = make_instance(f"i-{revision}", node=node).stamped(version=revision)
    index.publish([Change(revision, None, value, size=size)])


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("instance", ALL),
        (None, ALL),
        ("instance", Filter(node="n1")),
        (None, Filter(node="n1")),
        ("instance", Filter(namespace="default")),
    ],
)
def test_a_watcher_that_leaves_too_many_bytes_unread_is_cut_and_one_that_reads_is_not(
    kind: str | None, where: Filter
) -> None:
    index = Index(buffer_bytes_most=10_000)
    slow, reads = index.subscribe(kind, 0, where), index.subscribe(kind, 0, where)
    elsewhere = index.subscribe("instance", 0, Filter(node="n2"))
    for _ in range(3):
        assert slow.failure is None
        publish_large(index, 5_000, node="n1")
        assert len(reads.take()) == 1
    with pytest.raises(Expired, match="15,000 bytes unread") as caught:
        slow.take()
    assert caught.value.hint == "list again and watch from there"
    assert not slow.buffer, "what it left unread is free"
    assert reads.failure is None
    assert not elsewhere.ready
    assert index.watchers == 2


def test_the_history_is_bounded_in_bytes() -> None:
    index = Index(history_bytes_most=10_000)
    for _ in range(5):
        publish_large(index, 4_000)
    publish(index, 3)
    assert [each.revision for each in index.subscribe("instance", 3).take()] == [4, 5, 6, 7, 8]
    with pytest.raises(Expired):
        index.subscribe("instance", 2)


@pytest.mark.req("S0-20")
async def test_a_slow_watcher_of_large_objects_costs_no_more_than_its_share(tmp_path: Path) -> None:
    async with await SqliteStore.open(tmp_path / "state.db") as store:
        slow, reads = (store.watch("instance", since=0) for _ in range(2))
        await anext(slow)
        await anext(reads)
        large = make_instance("large").changed(status=InstanceStatus(phase=Phase.PENDING, message="x" * 1_000_000))
        count = BUFFER_BYTES_MOST // 1_000_000 + 1
        for number in range(count):
            name = msgspec.structs.replace(large.meta, name=f"i-{number}")
            await store.commit(Put(large.changed(meta=name)))
            assert [each.key.name for each in await anext(reads)] == [f"i-{number}"]
        with pytest.raises(Expired):
            await anext(slow)
        assert len((await store.list("instance")).items) == count
