"""EtcdStore keeps the promises of a store, with a real etcd: one member, and three members that speak TLS."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from mandor.store.access import StoreAccess
from mandor.store.base import Store
from mandor.store.etcd import EtcdStore
from mandor.testing.store import StoreSuite
from tests.components.etcd import Etcd, Tls, start_etcd

pytestmark = pytest.mark.real("etcd")


@pytest.mark.req("S0-7", "S2-23")
class TestEtcdStore(StoreSuite):
    @pytest.fixture
    async def store(self, etcd: Etcd) -> AsyncIterator[Store]:
        async with await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as store:
            yield store


@pytest.fixture(scope="module")
def members(etcd_binary: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    folder = tmp_path_factory.mktemp("etcd-tls")
    running = start_etcd(etcd_binary, folder, members=3, tls=Tls.make(folder / "tls"))
    yield running
    running.stop()


@pytest.mark.req("S0-7")
class TestEtcdStoreOfThreeMembersOverTls(StoreSuite):
    @pytest.fixture
    async def store(self, members: Etcd) -> AsyncIterator[Store]:
        assert members.tls is not None
        tls = members.tls
        access = StoreAccess(ca=str(tls.ca_file), cert=str(tls.cert_file), key=str(tls.key_file))
        async with await EtcdStore.open(members.endpoints, prefix=members.prefix(), access=access) as store:
            yield store
