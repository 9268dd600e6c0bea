"""A cluster moves from one type of store to another and back with a backup."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from mandor.errors import Conflict
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node, NodePhase, NodeStatus
from mandor.model.phase import Phase
from mandor.model.record import Cluster, ClusterSpec
from mandor.model.workload import Workload, make_release
from mandor.store.base import Put, Store
from mandor.store.dump import dump, load_dump, read_dump, write_dump
from mandor.store.open import open_store
from mandor.testing.store import make_instance, make_node, make_workload
from tests.components.etcd import Etcd

NewStore = Callable[[], Awaitable[Store]]


async def fill(store: Store) -> None:
    """A small cluster with running instances."""
    await store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec(id="c1"))))
    workload = make_workload("web", tier="front")
    await store.commit(Put(workload), Put(make_release(workload, 1)))
    for number in range(5):
        node = make_node(f"n{number}", zone=f"z{number % 2}")
        ready = NodeStatus(phase=NodePhase.READY, address=f"10.0.0.{number}", facts={"os": "linux"})
        await store.commit(Put(node.changed(status=ready)))
    await store.commit(*[Put(make_instance(f"web-{number}", index=number)) for number in range(100)])
    for item in (await store.list("instance")).items[:60]:
        assert isinstance(item, Instance)
        running = item.bound(f"n{item.spec.index % 5}", at=5.0).changed(
            status=InstanceStatus(phase=Phase.RUNNING, ready=True, address="10.1.2.3", started_at=6.0)
        )
        await store.commit(Put(running))


async def content(store: Store) -> dict[Key, tuple[str, object, object]]:
    """Everything but the versions, which belong to the store."""
    items: list[Object] = [item for item in (await store.list(None)).items if not isinstance(item, Cluster)]
    return {item.key: (item.meta.uid, item.spec, item.status) for item in items}


async def epoch(store: Store) -> int:
    cluster = await store.get(Key("cluster", "", "cluster"))
    assert isinstance(cluster, Cluster)
    return cluster.spec.epoch


@pytest.fixture
def homes(etcd: Etcd, tmp_path: Path) -> dict[str, NewStore]:
    count = iter(range(100))
    return {
        "sqlite": lambda: open_store(f"sqlite:{tmp_path / f'{next(count)}.db'}"),
        "etcd": lambda: open_store(f"etcd://{etcd.endpoints[0]}{etcd.prefix()}"),
    }


@pytest.mark.real("etcd")
@pytest.mark.req("S0-7", "S2-23", "S2-20", "S2-21", "S2-22", "S0-26")
@pytest.mark.parametrize("way", [("sqlite", "etcd", "sqlite"), ("etcd", "sqlite", "etcd")])
async def test_a_cluster_moves_and_moves_back(homes: dict[str, NewStore], tmp_path: Path, way: tuple[str, ...]) -> None:
    store = await homes[way[0]]()
    await fill(store)
    wanted = await content(store)
    for step, name in enumerate(way[1:], start=1):
        file = tmp_path / f"step{step}.dump"
        with file.open("wb") as target:
            await write_dump(store, target)
        revision = (await store.list(None)).revision
        stale = (await store.list("node")).items[0]
        await store.close()

        store = await homes[name]()
        with file.open("rb") as source:
            header = await load_dump(store, source)
        assert header.cluster == "c1"
        assert await content(store) == wanted
        assert await epoch(store) == 1 + step
        listing = await store.list(None)
        assert min(item.meta.version for item in listing.items) > revision
        with pytest.raises(Conflict):
            await store.commit(Put(stale))

        # And it is a store like any other: it goes on.
        first = listing.items[-1]
        await store.commit(Put(first))
    await store.close()


@pytest.mark.real("etcd")
@pytest.mark.req("S2-20", "S2-21", "S2-22", "S2-23")
@pytest.mark.parametrize("name", ["sqlite", "etcd"])
async def test_states_of_nodes_and_instances_and_what_was_wanted_outlive_the_server(
    etcd: Etcd, tmp_path: Path, name: str
) -> None:
    url = f"sqlite:{tmp_path / 'state.db'}" if name == "sqlite" else f"etcd://{etcd.endpoints[0]}{etcd.prefix()}"
    async with await open_store(url) as store:
        await fill(store)
        wanted = await store.list(None)
    async with await open_store(url) as store:
        assert list((await store.list(None)).items) == list(wanted.items)
        node = await store.get(Key("node", "", "n1"))
        assert isinstance(node, Node)
        assert (node.status.phase, node.status.address) == (NodePhase.READY, "10.0.0.1")
        instance = await store.get(Key("instance", "default", "web-0"))
        assert isinstance(instance, Instance)
        assert (instance.spec.node, instance.status.phase, instance.status.ready) == ("n0", Phase.RUNNING, True)
        workload = await store.get(Key("workload", "default", "web"))
        assert isinstance(workload, Workload)
        assert workload.spec.groups["main"].tasks["main"].command == ("sleep", "1")
        assert workload.labels == {"tier": "front"}


@pytest.mark.real("etcd")
@pytest.mark.parametrize("name", ["sqlite", "etcd"])
async def test_a_backup_of_a_store_in_use_is_of_one_moment(homes: dict[str, NewStore], name: str) -> None:
    """Two objects that always change together never stand in a backup with different values."""
    async with await homes[name]() as store:
        await store.commit(*[Put(make_node(f"filler{number}")) for number in range(100)])
        await store.commit(Put(make_node("a-twin", step="0")), Put(make_node("z-twin", step="0")))

        async def change() -> None:
            for step in range(1, 10_000):
                twins = [await store.get(Key("node", "", twin)) for twin in ("a-twin", "z-twin")]
                puts = []
                for twin in twins:
                    assert twin is not None
                    meta = twin.meta
                    fresh = Meta(name=meta.name, uid=meta.uid, version=meta.version, labels={"step": str(step)})
                    puts.append(Put(twin.changed(meta=fresh)))
                await store.commit(*puts)

        changing = asyncio.create_task(change())
        steps = set()
        for number in range(5):
            pieces = [piece async for piece in dump(store)]
            items = {item.meta.name: item for item in read_dump(io.BytesIO(b"".join(pieces)))}
            assert items["a-twin"].labels == items["z-twin"].labels, number
            steps.add(items["a-twin"].labels["step"])
            await asyncio.sleep(0.05)
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        assert len(steps) > 1
