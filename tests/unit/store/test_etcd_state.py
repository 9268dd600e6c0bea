"""Changes that were missed by the watch are published in order, in small batches of whole revisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.steps import FEW
from mandor.model.codec import encode
from mandor.model.meta import Object
from mandor.model.node import Node
from mandor.store.base import Change
from mandor.store.index import Index
from tests.scenarios.make import make_node

pytest.importorskip("grpc")

from mandor.store.etcd_state import EtcdState, in_pieces

SINCE = 10
PATH = b"/m/objects/node//"


class Etcd:
    """Returns one page of pairs; `meanwhile` is called before."""

    def __init__(self, revision: int, *values: Node) -> None:
        header = SimpleNamespace(revision=revision, cluster_id=1)
        pairs = [
            SimpleNamespace(key=PATH + each.meta.name.encode(), value=encode(each), mod_revision=each.meta.version)
            for each in values
        ]
        self._page = SimpleNamespace(header=header, kvs=pairs, more=False)
        self.meanwhile: Callable[[], None] = lambda: None

    async def call(self, *_: object) -> SimpleNamespace:
        await asyncio.sleep(0)
        self.meanwhile()
        return self._page


async def test_a_commit_during_a_new_listing_is_published_after_it() -> None:
    index = Index()
    index.load([make_node("gone", version=1), make_node("other", version=2), make_node("same", version=3)])
    index.start_at(3)
    etcd = Etcd(9, make_node("other", version=8, labels={"is": "other"}), make_node("same", version=3))
    state = EtcdState(etcd, "/m/", index)  # type: ignore[arg-type]
    state.seen = 3
    late, own = make_node("late"), make_node("own")

    def commit() -> None:
        state.committed(4, {late.key: (late, b"")})  # it was gone again when all was read
        state.committed(10, {own.key: (own, b"")})

    etcd.meanwhile = commit
    told = index.subscribe(Node.kind, 3)
    await state._list_again()
    assert {each.meta.name: each.meta.version for each in index.objects.values()} == {"other": 8, "same": 3, "own": 10}
    names = [(each.value.meta.name, each.after is not None) for each in told.take()]
    assert names == [("gone", False), ("other", True), ("own", True)]
    assert index.revision == state.seen == 10


def make_changes(revisions: list[int]) -> list[Change]:
    return [Change(each, None, make_node(f"new-{place}", version=each)) for place, each in enumerate(revisions)]


def make_gone(count: int) -> list[Object]:
    return [make_node(f"gone-{number}", version=1) for number in range(count)]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(0, 30), st.integers(0, 5))
def test_no_change_is_missing_and_no_revision_is_split(steps: list[int], gone: int, rest: int) -> None:
    changed = make_changes(sorted(SINCE + each for each in steps))
    until = max((each.revision for each in changed), default=SINCE) + rest
    if gone and until == SINCE:
        until += 1
    told = list(in_pieces(changed[:], make_gone(gone), SINCE, until))
    assert all(told)
    for before, after in pairwise(told):
        assert before[-1].revision < after[0].revision
    everything = [each for piece in told for each in piece]
    assert [each for each in everything if each.after is not None] == changed
    assert {each.value.meta.name for each in everything if each.after is None} == {
        each.meta.name for each in make_gone(gone)
    }
    revisions = [each.revision for each in everything]
    assert revisions == sorted(revisions)
    assert all(SINCE < each <= until for each in revisions)


def test_many_differences_are_published_in_small_batches() -> None:
    changed = make_changes([SINCE + 1000 + number // 100 for number in range(10 * FEW)])
    told = list(in_pieces(changed, make_gone(10 * FEW), SINCE, SINCE + 5000))
    assert max(map(len, told)) <= FEW + 100
