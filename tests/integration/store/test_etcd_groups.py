"""Commits that meet in one pass of the event loop are one transaction of etcd, and each still stands for itself."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from mandor.errors import Conflict, MandorError
from mandor.model.meta import Key
from mandor.model.node import NodeSpec
from mandor.store.base import WRITES_MOST, Check, Delete, Put
from mandor.store.etcd import EtcdStore
from mandor.store.etcd_group import AT_ONCE
from mandor.testing.store import make_node, read_node
from tests.components.etcd import Etcd
from tests.integration.store.proxy import Proxy

pytestmark = [pytest.mark.real("etcd"), pytest.mark.req("S2-23")]

MANY = 60


@pytest.fixture
async def store(etcd: Etcd) -> AsyncIterator[EtcdStore]:
    async with await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix()) as opened:
        yield opened


async def test_commits_of_one_pass_share_a_revision_and_all_of_them_are_there(store: EtcdStore) -> None:
    revisions = await asyncio.gather(*(store.commit(Put(make_node(f"n{number}"))) for number in range(MANY)))
    assert len(set(revisions)) < MANY / 4
    for number, revision in enumerate(revisions):
        assert (await read_node(store, f"n{number}")).meta.version == revision


async def test_of_a_group_only_the_one_at_fault_is_refused(store: EtcdStore) -> None:
    await store.commit(Put(make_node("n3")))
    other = Key("node", "", "n5")
    wanted = [store.commit(Put(make_node(f"n{number}"))) for number in range(5)]
    wanted.append(store.commit(Put(make_node("n6")), Check(other, 77)))
    found = await asyncio.gather(*wanted, return_exceptions=True)
    refused = [number for number, each in enumerate(found) if isinstance(each, Conflict)]
    assert refused == [3, 5]
    assert {each.key.name for each in (await store.list("node")).items} == {f"n{number}" for number in range(5)}


async def test_of_two_that_write_the_same_in_one_pass_one_wins(store: EtcdStore) -> None:
    found = await asyncio.gather(*(store.commit(Put(make_node("n1"))) for _ in range(2)), return_exceptions=True)
    assert [isinstance(each, Conflict) for each in found].count(True) == 1


async def test_a_check_that_many_share_keeps_none_of_them_apart(store: EtcdStore) -> None:
    term = await store.commit(Put(make_node("term")))
    fence = Check(Key("node", "", "term"), term)
    revisions = await asyncio.gather(*(store.commit(fence, Put(make_node(f"n{number}"))) for number in range(20)))
    assert len(set(revisions)) == 1


async def test_whoever_lost_the_term_writes_nothing_even_in_a_group_with_others(store: EtcdStore) -> None:
    term = await store.commit(Put(make_node("term")))
    await store.commit(Put((await read_node(store, "term")).changed(spec=NodeSpec(pool="next"))))
    fence = Check(Key("node", "", "term"), term)
    found = await asyncio.gather(
        store.commit(fence, Put(make_node("stale"))), store.commit(Put(make_node("fresh"))), return_exceptions=True
    )
    assert isinstance(found[0], Conflict)
    assert [each.key.name for each in (await store.list("node")).items] == ["fresh", "term"]


async def test_what_is_deleted_and_what_is_put_go_together(store: EtcdStore) -> None:
    version = await store.commit(*(Put(make_node(f"n{number}")) for number in range(3)))
    gone = [store.commit(Delete(Key("node", "", f"n{number}"), version)) for number in range(3)]
    assert len(set(await asyncio.gather(*gone, store.commit(Put(make_node("n4")))))) == 1
    assert [each.key.name for each in (await store.list("node")).items] == ["n4"]


async def test_large_ones_are_not_sent_as_more_than_etcd_takes(store: EtcdStore) -> None:
    filler = {f"key{number}": "x" * 256 for number in range(64)}
    heavy = [make_node(f"n{number}", **filler) for number in range(WRITES_MOST)]
    await asyncio.gather(*(store.commit(Put(each)) for each in heavy))
    assert len(store.index) == WRITES_MOST


async def test_more_than_may_be_on_their_way_wait_and_get_through(store: EtcdStore) -> None:
    """No seven of them fit together."""
    count = AT_ONCE * 8

    async def one(number: int) -> None:
        absent = [Check(Key("node", "", f"absent{number}-{each}"), 0) for each in range(20)]
        await store.commit(Put(make_node(f"n{number}")), *absent)

    await asyncio.gather(*map(one, range(count)))
    assert len(store.index) == count


async def test_who_stops_waiting_takes_nobody_along(store: EtcdStore) -> None:
    tasks = [asyncio.create_task(store.commit(Put(make_node(f"n{number}")))) for number in range(5)]
    await asyncio.sleep(0)
    tasks[2].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [int, int, asyncio.CancelledError, int, int]


async def test_a_group_whose_answer_was_lost_is_found_and_not_made_twice(etcd: Etcd) -> None:
    prefix = etcd.prefix()
    async with (
        Proxy(etcd.endpoints[0]) as proxy,
        await EtcdStore.open([proxy.endpoint], prefix=prefix) as store,
        await EtcdStore.open(etcd.endpoints, prefix=prefix) as other,
    ):
        proxy.mute()
        committing = [asyncio.create_task(store.commit(Put(make_node(f"n{number}")))) for number in range(5)]
        async with asyncio.timeout(60):
            while len(other.index) < 5:
                await asyncio.sleep(0.01)
        assert not any(each.done() for each in committing)
        proxy.cut()
        proxy.mend()
        assert set(await asyncio.gather(*committing)) == {other.index.revision}
        assert (await read_node(store, "n4")).meta.version == other.index.revision


async def test_commits_that_wait_when_the_store_closes_are_told(etcd: Etcd) -> None:
    store = await EtcdStore.open(etcd.endpoints, prefix=etcd.prefix())
    tasks = [asyncio.create_task(store.commit(Put(make_node(f"n{number}")))) for number in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await store.close()
    async with asyncio.timeout(60):
        found = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, int | MandorError) for each in found), found
