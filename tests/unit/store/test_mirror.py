"""A mirror equals its store, whatever happens to the watch."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from mandor.errors import Expired, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import settle
from mandor.model.meta import Key
from mandor.model.node import NodeSpec
from mandor.store.base import ALL, Change, Delete, Filter, Listing, Put
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror
from mandor.testing.store import make_instance, make_node, read_node, seen

QUICK = Backoff(first_seconds=0.001, most_seconds=0.01)


class FailingStore(MemoryStore):
    """A memory store whose list and watch fail on cue."""

    def __init__(self) -> None:
        super().__init__()
        self.list_failures: list[MandorError] = []
        self.broken: MandorError | None = None
        self.lists = 0

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        self.lists += 1
        if self.list_failures:
            raise self.list_failures.pop()
        return await super().list(kind, where)

    async def _broken_watch(self, watch: AsyncIterator[Sequence[Change]]) -> AsyncIterator[Sequence[Change]]:
        async for batch in watch:
            if self.broken is not None:
                error, self.broken = self.broken, None
                raise error
            yield batch

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return self._broken_watch(super().watch(kind, since=since, where=where))


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not done():
            await asyncio.sleep(0.001)


async def equal(mirror: Mirror, store: MemoryStore) -> bool:
    listing = await store.list("node")
    return sorted(mirror.items(), key=lambda item: item.key) == list(listing.items)


async def test_a_mirror_begins_with_what_is_there_and_follows() -> None:
    store = MemoryStore()
    await store.commit(Put(make_node("n1")), Put(make_instance("web-0")))
    async with Mirror(store, "node") as mirror:
        assert not mirror.complete
        await mirror.synced()
        assert mirror.complete
        assert [item.meta.name for item in mirror.items()] == ["n1"]
        revision = await store.commit(Put(make_node("n2")))
        await mirror.reached(revision)
        assert mirror.get(Key("node", "", "n2")) is not None
        assert mirror.get(Key("instance", "default", "web-0")) is None
        assert len(mirror) == 2


async def test_listeners_get_the_first_listing_and_every_change() -> None:
    store = MemoryStore()
    await store.commit(Put(make_node("n1")))
    heard: list[Change] = []
    mirror = Mirror(store, "node")
    stop = mirror.listen(heard.extend)
    async with mirror:
        await mirror.synced()
        read = await read_node(store, "n1")
        await store.commit(Put(read.changed(spec=NodeSpec(pool="gpu"))))
        await store.commit(Put(make_node("n2")))
        read = await read_node(store, "n1")
        await mirror.reached(await store.commit(Delete(read.key, read.meta.version)))
        assert seen(heard) == [("created", "n1"), ("changed", "n1"), ("created", "n2"), ("deleted", "n1")]
        stop()
        await mirror.reached(await store.commit(Put(make_node("n3"))))
        assert len(heard) == 4


async def test_a_listener_sees_the_mirror_as_it_is_after_the_change() -> None:
    store = MemoryStore()
    sizes: list[int] = []
    mirror = Mirror(store, "node")
    mirror.listen(lambda _: sizes.append(len(mirror)))
    async with mirror:
        await mirror.synced()
        for number in range(3):
            await mirror.reached(await store.commit(Put(make_node(f"n{number}"))))
    assert sizes == [1, 2, 3]


async def test_what_leaves_the_filter_leaves_the_mirror() -> None:
    store = MemoryStore()
    await store.commit(Put(make_instance("web-0", node="n1")))
    async with Mirror(store, "instance", Filter(node="n1")) as mirror:
        await mirror.synced()
        found = await store.get(Key("instance", "default", "web-0"))
        assert found is not None
        await mirror.reached(await store.commit(Put(found.bound("n2", at=1.0))))  # type: ignore[attr-defined]
        assert len(mirror) == 0


@pytest.mark.req("S0-18")
@pytest.mark.parametrize("error", [Expired("too slow"), Unavailable("the server is gone")])
async def test_after_a_broken_watch_the_listeners_get_the_differences(error: MandorError) -> None:
    store = FailingStore()
    await store.commit(Put(make_node("stays")), Put(make_node("changes")), Put(make_node("goes")))
    heard: list[Change] = []
    async with Mirror(store, "node", backoff=QUICK) as mirror:
        await mirror.synced()
        mirror.listen(heard.extend)
        store.broken = error
        changes, goes = await read_node(store, "changes"), await read_node(store, "goes")
        revision = await store.commit(
            Put(changes.changed(spec=NodeSpec(pool="gpu"))), Delete(goes.key, goes.meta.version), Put(make_node("new"))
        )
        await mirror.reached(revision)
        assert sorted(seen(heard)) == [("changed", "changes"), ("created", "new"), ("deleted", "goes")]
        assert await equal(mirror, store)
        await until(lambda: mirror.error is None)


async def test_a_listing_that_failed_is_retried() -> None:
    store = FailingStore()
    store.list_failures = [Unavailable("down"), Unavailable("down"), Unavailable("down")]
    await store.commit(Put(make_node("n1")))
    async with Mirror(store, "node", backoff=QUICK) as mirror:
        await until(lambda: mirror.error is not None)
        assert not mirror.complete
        await mirror.synced()
        assert len(mirror) == 1
    assert store.lists == 4


async def test_a_mirror_that_fell_behind_lists_again_and_is_equal() -> None:
    store = MemoryStore(history_most=50, buffer_most=50)
    async with Mirror(store, "node", backoff=QUICK) as mirror:
        await mirror.synced()
        await settle()
        for number in range(300):
            store.index.publish(  # faster than any watcher can read
                [Change(store.index.revision + 1, None, make_node(f"n{number}").stamped(version=number + 1))]
            )
        await mirror.reached(store.index.revision)
        assert await equal(mirror, store)


async def test_a_listener_that_raises_ends_the_block() -> None:
    store = MemoryStore()

    def fail(changes: Sequence[Change]) -> None:
        raise ZeroDivisionError

    mirror = Mirror(store, "node")
    mirror.listen(fail)

    async def keep() -> None:
        async with mirror:
            await mirror.synced()
            await store.commit(Put(make_node("n1")))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        await keep()
    assert caught.group_contains(ZeroDivisionError)


async def test_leaving_the_block_ends_the_watch_and_all_waits() -> None:
    store = MemoryStore()
    async with Mirror(store, "node") as mirror:
        await mirror.synced()
        await settle()
        assert store.index.watchers == 1
        waiting = asyncio.create_task(mirror.reached(1000))
        await settle()
    await asyncio.wait({waiting})
    assert waiting.cancelled()
    del mirror
    assert store.index.watchers == 0
