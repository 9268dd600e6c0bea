"""Store wrappers forward all calls to which they add nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from mandor.agent.cluster_contact import OwnClusterStore
from mandor.errors import Unavailable
from mandor.lib.metrics import Metrics
from mandor.model.meta import Key
from mandor.store.base import Check, LeaseChannel, Put, Store
from mandor.store.batching import BatchingStore
from mandor.store.fence import FencedStore
from mandor.store.memory import MemoryStore
from mandor.store.metered import MeteredStore
from mandor.store.traced import TracedStore
from mandor.testing.store import make_node

AROUND: list[Callable[[Store], Store]] = [
    lambda store: FencedStore(store, Check(Key("lease", "", "term"), 0)),
    BatchingStore,
    MeteredStore,
    lambda store: TracedStore(store, "memory", lambda: 0.0),
    lambda store: OwnClusterStore(store, lambda: False),
]


class Ailing(MemoryStore):
    async def problems(self) -> Sequence[str]:
        return ("it is old",)

    def lease_channel(self) -> LeaseChannel | None:
        raise AssertionError("there is no way around")

    async def close(self) -> None:
        raise AssertionError("it is closed by who opened it")


@pytest.fixture
async def inside() -> AsyncIterator[MemoryStore]:
    store = Ailing()
    yield store
    await MemoryStore.close(store)


@pytest.mark.parametrize("around", AROUND)
async def test_a_wrapper_forwards_problems_and_has_no_lease_channel(
    inside: MemoryStore, around: Callable[[Store], Store]
) -> None:
    async with around(inside) as store:
        await store.commit(Put(make_node("n1")))
        listing = await store.list("node")
        assert [each.meta.name for each in listing.items] == ["n1"]
        found = await store.get_all([Key("node", "", "n1"), Key("node", "", "n2")])
        assert found == [await inside.get(Key("node", "", "n1")), None]
        assert [each.key.name for each in await anext(store.watch("node", since=0)) if not each.bookmark] == ["n1"]
        assert await store.problems() == ("it is old",)
        assert store.lease_channel() is None


async def test_each_key_of_a_get_all_is_counted(inside: MemoryStore) -> None:
    store, metrics = MeteredStore(inside), Metrics()
    metrics.add(store.metrics)
    await store.get_all([Key("node", "", "n1"), Key("node", "", "n2"), Key("workload", "default", "web")])
    text = (await metrics.text()).decode()
    assert 'mandor_store_reads_total{verb="get",kind="node"} 2' in text
    assert 'mandor_store_reads_total{verb="get",kind="workload"} 1' in text


async def test_nothing_is_written_while_another_cluster_answers(inside: MemoryStore) -> None:
    with pytest.raises(Unavailable):
        await OwnClusterStore(inside, lambda: True).commit(Put(make_node("n1")))
    assert await inside.get(Key("node", "", "n1")) is None
