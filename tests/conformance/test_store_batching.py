"""BatchingStore passes the store suite, except that combined commits share a revision."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from mandor.model.node import Node
from mandor.store.base import Put, Store
from mandor.store.batching import BatchingStore
from mandor.store.memory import MemoryStore
from mandor.testing.store import StoreSuite
from tests.scenarios.make import make_node


class TestGatheredStore(StoreSuite):
    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        async with MemoryStore() as store:
            yield BatchingStore(store)

    async def test_many_writers_at_once_all_get_through(self, store: Store) -> None:
        await asyncio.gather(*[store.commit(Put(make_node(f"n{number}"))) for number in range(200)])
        assert len((await store.list(Node.kind)).items) == 200
