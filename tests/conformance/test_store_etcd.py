"""EtcdStore keeps the promises of a store, with a real etcd: one member, three members, TLS."""

from collections.abc import AsyncIterator

import pytest

from mandor.store.base import Store
from mandor.store.etcd import EtcdStore
from mandor.testing.store import StoreSuite
from tests.components.etcd import Etcd


@pytest.mark.req("S0-7")
@pytest.mark.real("etcd")
class TestEtcdStore(StoreSuite):
    @pytest.fixture
    async def store(self, etcd: Etcd) -> AsyncIterator[Store]:
        async with await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as store:
            yield store
