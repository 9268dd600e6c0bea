"""Watches over an index: bookmarks, waiting, closing and clean-up."""

import asyncio
import gc
from itertools import pairwise

import pytest

from mandor.errors import Expired, Unavailable
from mandor.lib.clock import settle
from mandor.model.meta import Meta
from mandor.model.node import NodeSpec
from mandor.store.base import ALL, Change, Filter, Put
from mandor.store.feed import Watch, list_index
from mandor.store.idle_timers import IdleTimers
from mandor.store.index import WAKEUPS_PER_PASS
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_instance, make_node, read_node


async def test_an_idle_watch_gets_bookmarks() -> None:
    store = MemoryStore()
    watch = Watch(store.index, "workload", 0, ALL, bookmark_seconds=0.01)
    assert [change.bookmark for change in await anext(watch)] == [True]
    revision = await store.commit(Put(make_node("n1")))  # not its kind
    (bookmark,) = await anext(watch)
    assert bookmark.bookmark
    assert bookmark.revision == revision


async def test_the_changes_of_a_burst_come_in_one_batch() -> None:
    store = MemoryStore()
    watch = store.watch("node", since=0)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await settle()
    store.index.publish([Change(1, None, make_node(f"n{number}").stamped(version=1)) for number in range(100)])
    assert len(await waiting) == 100


async def test_a_slow_watcher_gets_expired_and_nothing_more() -> None:
    store = MemoryStore(buffer_most=3)
    watch = store.watch("node", since=0)
    await anext(watch)
    for number in range(5):
        await store.commit(Put(make_node(f"n{number}")))
    with pytest.raises(Expired):
        await anext(watch)
    with pytest.raises(StopAsyncIteration):
        await anext(watch)
    assert store.index.watchers == 0


async def test_closing_the_store_ends_its_watches() -> None:
    store = MemoryStore()
    watch = store.watch("node", since=0)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await settle()
    await store.close()
    with pytest.raises(Unavailable):
        await waiting


async def test_a_closed_watch_ends_quietly_even_while_someone_waits() -> None:
    store = MemoryStore()
    watch = Watch(store.index, "node", 0, ALL)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await settle()
    await watch.aclose()
    with pytest.raises(StopAsyncIteration):
        await waiting
    assert store.index.watchers == 0


async def test_a_cancelled_wait_loses_nothing() -> None:
    store = MemoryStore()
    watch = store.watch("node", since=0)
    await anext(watch)
    waiting = asyncio.ensure_future(anext(watch))
    await settle()
    waiting.cancel()
    await asyncio.wait({waiting})
    await store.commit(Put(make_node("n1")))
    assert [change.key.name for change in await anext(watch) if not change.bookmark] == ["n1"]


async def test_a_watch_that_is_dropped_is_forgotten() -> None:
    store = MemoryStore()
    for _ in range(10):
        async for _batch in store.watch("node", since=0):
            break
    gc.collect()
    assert store.index.watchers == 0


async def test_a_watch_that_was_never_read_costs_nothing() -> None:
    store = MemoryStore()
    watches = [store.watch("node", since=0) for _ in range(10)]
    assert store.index.watchers == 0
    del watches


async def test_a_labelled_list_gives_way_to_others_and_is_still_of_one_moment() -> None:
    store = MemoryStore()
    for start in range(0, 12_000, 100):
        await store.commit(*[Put(make_node(f"n{number:05}", kept="yes")) for number in range(start, start + 100)])
    await store.list("node")
    listing = asyncio.ensure_future(list_index(store.index, "node", Filter(labels={"kept": "yes"})))
    await asyncio.sleep(0)
    last = await read_node(store, "n11999")
    unlabelled = Meta(name="n11999", uid=last.meta.uid, version=last.meta.version)
    await store.commit(Put(last.changed(meta=unlabelled, spec=NodeSpec(pool="late"))))
    found = await listing
    assert len(found.items) == 12_000
    assert found.revision == 120


async def test_watchers_of_single_nodes_are_woken_a_few_at_a_time_and_miss_nothing() -> None:
    store, count = MemoryStore(), 5 * WAKEUPS_PER_PASS
    heard: dict[str, list[str]] = {}

    async def follow(node: str) -> None:
        async for changes in store.watch(None, since=0, where=Filter(node=node, kinds=frozenset({"instance"}))):
            heard.setdefault(node, []).extend(each.value.meta.name for each in changes if not each.bookmark)

    tasks = [asyncio.ensure_future(follow(f"n{number}")) for number in range(count)]
    await settle()
    heard.clear()
    names = [f"{word}-{number}" for word in ("a", "b") for number in range(count)]
    made = [make_instance(name, node=f"n{name.partition('-')[2]}").stamped(version=1) for name in names]
    store.index.publish([Change(1, None, each) for each in made])
    passes = list[int]()
    while len(heard) < count:
        await asyncio.sleep(0)
        passes.append(len(heard))
    assert max(later - earlier for earlier, later in pairwise([0, *passes])) <= WAKEUPS_PER_PASS
    assert heard == {f"n{number}": [f"a-{number}", f"b-{number}"] for number in range(count)}
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_an_idle_bookmark_wakes_the_watcher_only_if_the_callback_could_not_deliver_it() -> None:
    store = MemoryStore(bookmark_seconds=0.02)
    watch = store.watch("node", since=0)
    assert isinstance(watch, Watch)
    assert (await anext(watch))[-1].bookmark
    told: list[int] = []

    def tell(bookmark: Change) -> bool:
        told.append(bookmark.revision)
        return len(told) < 3

    watch.on_idle(tell)
    async with asyncio.timeout(60):
        batch = await anext(watch)
    assert [each.bookmark for each in batch] == [True]
    assert told == [0, 0, 0]
    revision = await store.commit(Put(make_node("n1")))
    async with asyncio.timeout(60):
        assert [each.revision for each in await anext(watch)] == [revision]
    await watch.aclose()
    assert len(store.index.idle_timers) == 0


async def test_one_event_loop_timer_serves_all_idle_timers() -> None:
    reminders = IdleTimers()
    rung: list[str] = []
    soon = reminders.add(lambda: rung.append("soon"), 0.05)
    reminders.add(lambda: rung.append("late"), 3600)
    kept_busy = reminders.add(lambda: rung.append("busy"), 0.05)
    kept_busy.since += 3600
    async with asyncio.timeout(60):
        while rung.count("soon") < 3:
            await asyncio.sleep(0.01)
    assert set(rung) == {"soon"}
    assert len(reminders) == 3
    reminders.drop(soon)
    reminders.drop(soon)
    assert len(reminders) == 2
