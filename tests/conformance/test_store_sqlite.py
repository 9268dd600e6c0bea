"""SqliteStore keeps the promises of a store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mandor.store.base import Store
from mandor.store.sqlite import SqliteStore
from mandor.testing.store import StoreSuite


@pytest.mark.req("S2-3")
class TestSqliteStore(StoreSuite):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        async with await SqliteStore.open(tmp_path / "state.db") as store:
            yield store
