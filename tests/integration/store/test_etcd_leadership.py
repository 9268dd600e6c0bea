"""Leadership with a real etcd: the lease is renewed past a busy event loop, and fencing works."""

import asyncio
import time

import msgspec
import pytest

from mandor.errors import Conflict
from mandor.lib.clock import SystemClock
from mandor.model.meta import Key
from mandor.model.record import Lease
from mandor.store.access import StoreAccess
from mandor.store.base import Check, Put, Store
from mandor.store.election import Election
from mandor.store.etcd import EtcdStore
from mandor.testing.store import make_node, read_node
from tests.components.etcd import Etcd

pytestmark = pytest.mark.real("etcd")

LEASE_SECONDS = 3.0
BUSY = 20
SLICE_SECONDS = 0.05
LEASE = Key(Lease.kind, "", "leader-scheduler")
TERM = Key(Lease.kind, "", "term-scheduler")
CALL_SECONDS = 20.0


async def spec_of(store: Store, key: Key) -> Lease:
    found = await store.get(key)
    assert isinstance(found, Lease)
    return found


def compute() -> None:
    """Blocks the event loop, mostly asleep to spare the CPU."""
    until = time.monotonic() + SLICE_SECONDS / 10
    while time.monotonic() < until:
        pass
    time.sleep(SLICE_SECONDS * 0.9)


async def test_a_leader_whose_loop_is_busy_for_several_leases_keeps_its_term(etcd: Etcd) -> None:
    """Each pass of the loop takes a third of the lease, and a commit takes several passes."""
    over = asyncio.Event()

    async def slices(until: float) -> None:
        while time.monotonic() < until:
            compute()
            await asyncio.sleep(0)

    async def work(store: Store) -> None:
        until = time.monotonic() + LEASE_SECONDS * 3
        await asyncio.gather(*(slices(until) for _ in range(BUSY)))
        await store.commit(Put(make_node("still-here")))
        over.set()
        await asyncio.Event().wait()

    prefix = etcd.prefix()
    async with (
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as mine,
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as others,
    ):
        clock = SystemClock()
        election = Election(mine, "scheduler", "one", LEASE_SECONDS, clock, lease_channel=mine.lease_channel())
        leading = asyncio.create_task(election.run(work))
        async with asyncio.timeout(60):
            await over.wait()
        term, lease = await spec_of(mine, TERM), await spec_of(mine, LEASE)
        assert (term.spec.renewals, term.spec.holder) == (1, "one")
        assert lease.spec.renewals >= 3
        assert election.leading
        # Whoever gives the leadership back has nothing under way that would take it again.
        leading.cancel()
        await asyncio.wait({leading})
        async with asyncio.timeout(60):
            while (await spec_of(others, LEASE)).spec.holder:
                await asyncio.sleep(0.05)


@pytest.mark.req("S2-23")
async def test_a_leader_whose_term_is_over_renews_nothing_and_writes_nothing(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    stores: list[Store] = []

    async def work(store: Store) -> None:
        stores.append(store)
        await asyncio.Event().wait()

    async with await EtcdStore.open(etcd.endpoints, prefix=prefix) as store:
        election = Election(store, "scheduler", "one", 60.0, SystemClock(), lease_channel=store.lease_channel())
        leading = asyncio.create_task(election.run(work))
        async with asyncio.timeout(60):
            while not stores:
                await asyncio.sleep(0.01)
        lease, term = await spec_of(store, LEASE), await spec_of(store, TERM)
        await store.commit(
            Put(Lease(meta=lease.meta, spec=msgspec.structs.replace(lease.spec, holder="two"))),
            Put(Lease(meta=term.meta, spec=msgspec.structs.replace(term.spec, holder="two", renewals=2))),
        )
        with pytest.raises(Conflict):
            await stores[0].commit(Put(make_node("n1")))
        assert await store.get(Key("node", "", "n1")) is None
        leading.cancel()
        await asyncio.wait({leading})
        assert (await spec_of(store, LEASE)).spec.holder == "two"


async def test_a_commit_of_the_lease_channel_appears_in_the_index(etcd: Etcd) -> None:
    async with await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as store:
        door = store.lease_channel()
        assert door is not None
        first = await asyncio.to_thread(door.commit, Put(make_node("n1")), seconds=CALL_SECONDS)
        second = await store.commit(Put(make_node("n2")))
        assert second == first + 1
        found = await read_node(store, "n1")
        assert found.meta.version == first
        assert await asyncio.to_thread(door.get, found.key, CALL_SECONDS) == found
        with pytest.raises(Conflict):
            await asyncio.to_thread(door.commit, Check(found.key, first + 1), seconds=CALL_SECONDS)
        assert await asyncio.to_thread(door.get, Key("node", "", "n3"), CALL_SECONDS) is None


async def test_the_lease_channel_uses_tls(etcd_tls: Etcd) -> None:
    tls = etcd_tls.tls
    assert tls is not None
    access = StoreAccess(ca=str(tls.ca_file), cert=str(tls.cert_file), key=str(tls.key_file))
    async with await EtcdStore.open(etcd_tls.endpoints, prefix=etcd_tls.prefix(), access=access) as store:
        door = store.lease_channel()
        assert door is not None
        await asyncio.to_thread(door.commit, Put(make_node("n1")), seconds=CALL_SECONDS)
        await store.commit(Put(make_node("n2")))
        await read_node(store, "n1")
