"""RemoteStore keeps the promises of a store, through a real server."""

from collections.abc import AsyncIterator

import pytest

from mandor.api.auth import Auth, make_token
from mandor.api.settings import ApiSettings
from mandor.client.aio import Client
from mandor.lib.clock import SystemClock
from mandor.store.base import Put, Store
from mandor.store.memory import MemoryStore
from mandor.store.remote import RemoteStore
from mandor.testing.store import StoreSuite
from tests.api.conftest import running_api


@pytest.mark.req("S0-4")
class TestRemoteStore(StoreSuite):
    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        # The suite wants an empty store, so the token lives in one of its own.
        keys = MemoryStore()
        token, text = make_token("component", "component:test")
        await keys.commit(Put(token))
        auth = Auth(keys, SystemClock(), tokens_required=True)
        async with (
            MemoryStore() as behind,
            running_api(behind, ApiSettings(), auth) as api,
            RemoteStore(Client([api.url], token=text)) as store,
        ):
            yield store
