"""BatchingStore combines commits, and each caller gets its own result."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from mandor.errors import Conflict, Invalid, Unavailable
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.store.base import WRITES_MOST, Check, Put, Write
from mandor.store.batching import BatchingStore
from mandor.store.fence import FencedStore
from mandor.store.memory import MemoryStore
from tests.scenarios.make import make_node


class Watched(MemoryStore):
    """Records the number of writes of each commit."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.away = False
        self.broken = False
        self.refused = ""
        """Name of a node that the store refuses to write."""

    async def commit(self, *writes: Write) -> int:
        self.sizes.append(len(writes))
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("away")
        if self.broken:
            raise RuntimeError("a defect")
        if any(isinstance(each, Put) and each.value.meta.name == self.refused for each in writes):
            raise Invalid(f"{self.refused} is too large")
        return await super().commit(*writes)


async def put_all(store: BatchingStore, names: Sequence[str]) -> list[int | BaseException]:
    return await asyncio.gather(*(store.commit(Put(make_node(name))) for name in names), return_exceptions=True)


async def test_simultaneous_commits_are_stored_in_one_commit() -> None:
    async with Watched() as inner:
        found = await put_all(BatchingStore(inner), [f"n{number}" for number in range(50)])
        assert inner.sizes == [50]
        assert set(found) == {1}
        assert len((await inner.list(Node.kind)).items) == 50


async def test_many_commits_are_split_at_the_limit_of_the_store() -> None:
    async with Watched() as inner:
        found = await put_all(BatchingStore(inner), [f"n{number}" for number in range(2 * WRITES_MOST + 50)])
        assert inner.sizes == [WRITES_MOST, WRITES_MOST, 50]
        assert not [each for each in found if isinstance(each, BaseException)]


async def test_a_conflict_fails_only_the_caller_with_that_key() -> None:
    async with Watched() as inner:
        await inner.commit(Put(make_node("n1")))
        found = await put_all(BatchingStore(inner), ["n0", "n1", "n2"])
        assert [isinstance(each, Conflict) for each in found] == [False, True, False]
        assert isinstance(found[1], Conflict)
        assert found[1].facts["key"] == make_node("n1").key
        assert {each.meta.name for each in (await inner.list(Node.kind)).items} == {"n0", "n1", "n2"}


async def test_of_two_simultaneous_writes_to_one_key_one_fails() -> None:
    async with Watched() as inner:
        found = await put_all(BatchingStore(inner), ["n0", "n0", "n1"])
        assert [isinstance(each, Conflict) for each in found] == [False, True, False]


async def test_an_invalid_write_fails_only_its_caller() -> None:
    async with Watched() as inner:
        inner.refused = "n1"
        found = await put_all(BatchingStore(inner), ["n0", "n1", "n2"])
        assert [isinstance(each, Invalid) for each in found] == [False, True, False]
        assert {each.meta.name for each in (await inner.list(Node.kind)).items} == {"n0", "n2"}
        assert inner.sizes == [3, 1, 1, 1], "one by one after the first refusal"


async def test_an_unavailable_store_fails_all_waiting_commits_but_not_later_ones() -> None:
    async with Watched() as inner:
        store = BatchingStore(inner)
        inner.away = True
        found = await put_all(store, ["n0", "n1"])
        assert [type(each) for each in found] == [Unavailable, Unavailable]
        inner.away = False
        assert await put_all(store, ["n0", "n1"]) == [1, 1]


async def test_a_former_leader_writes_nothing() -> None:
    async with Watched() as inner:
        fence = Check(Key("lease", "", "leader"), 7)
        found = await put_all(BatchingStore(FencedStore(inner, fence)), ["n0", "n1"])
        assert [type(each) for each in found] == [Conflict, Conflict]
        assert not (await inner.list(Node.kind)).items


async def test_a_cancelled_caller_does_not_delay_the_others() -> None:
    async with Watched() as inner:
        store = BatchingStore(inner)
        first = asyncio.ensure_future(store.commit(Put(make_node("n0"))))
        second = asyncio.ensure_future(store.commit(Put(make_node("n1"))))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == 1
        with pytest.raises(asyncio.CancelledError):
            await first


async def test_every_waiting_commit_ends_after_an_unexpected_error() -> None:
    async with Watched() as inner:
        inner.broken = True
        async with asyncio.timeout(30):
            found = await put_all(BatchingStore(inner), ["a", "b"])
        assert [type(each) for each in found] == [RuntimeError, RuntimeError]
