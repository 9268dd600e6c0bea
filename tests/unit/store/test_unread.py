"""What all watchers leave unread together is bounded: the furthest behind is cut, and resumes by its revision."""

import pytest

from mandor.errors import Expired
from mandor.store.base import Change
from mandor.store.index import Index
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


def test_who_was_cut_resumes_by_the_revision_it_knows() -> None:
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
