"""MemoryStore keeps the promises of a store."""

from collections.abc import AsyncIterator

import pytest

from mandor.store.base import Store
from mandor.store.memory import MemoryStore
from mandor.testing.store import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        async with MemoryStore() as store:
            yield store
