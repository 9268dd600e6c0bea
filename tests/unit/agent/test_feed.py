"""The feed of orders misses nothing and has the source of each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from mandor.agent.direct import DirectLink
from mandor.agent.feed import Feed, Source
from mandor.errors import MandorError
from mandor.lib.clock import ManualClock
from mandor.model.meta import Key, Object
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Change, Filter, Put
from mandor.store.memory import MemoryStore
from tests.unit.agent.world import World


class Book:
    """A reader that records what the feed passes to it."""

    def __init__(self) -> None:
        self.lists: list[tuple[set[str], Source]] = []
        self.changes: list[tuple[str, bool, Source]] = []
        self.losses: list[int] = []

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self.lists.append(({item.meta.name for item in items}, source))

    def changed(self, change: Change, source: Source) -> None:
        self.changes.append((change.key.name, change.after is None, source))

    def lost(self, error: MandorError, failures: int) -> None:
        self.losses.append(failures)


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path, ManualClock())
    await world.found()
    await world.apply()
    return world


@pytest.fixture
async def book(world: World) -> AsyncIterator[Book]:
    book = Book()
    link = DirectLink(world.wire, "n1")
    feed = Feed(world.wire, "instance", Filter(node="n1"), world.clock, book, link.cluster)
    running = asyncio.ensure_future(feed.run())
    await world.clock.advance(0.1)
    yield book
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def set_epoch(world: World, epoch: int) -> None:
    cluster = await world.store.get(Key("cluster", "", "cluster"))
    assert isinstance(cluster, Cluster)
    await world.store.commit(Put(cluster.changed(spec=ClusterSpec("c1", epoch))))


async def test_a_feed_lists_once_and_then_watches_only_this_node(world: World, book: Book) -> None:
    assert [names for names, _ in book.lists] == [set()]
    await world.order()
    await world.order(index=1, node="n2")
    await world.clock.advance(1)
    await world.delete()
    await world.clock.advance(1)
    assert [(name, gone) for name, gone, _ in book.changes] == [("web-0", False), ("web-0", True)]
    assert book.changes[0][2][:2] == ("c1", 1)


async def test_an_interrupted_watch_resumes_without_a_list(world: World, book: Book) -> None:
    world.wire.cut()
    await world.clock.advance(30)
    await world.order()
    await world.delete()
    await world.order(index=1)
    world.wire.mend()
    await world.clock.advance(30)
    assert len(book.lists) == 1
    assert [(name, gone) for name, gone, _ in book.changes] == [("web-0", False), ("web-0", True), ("web-1", False)]
    assert book.losses[0] == 1
    assert book.losses == sorted(book.losses)


async def test_another_epoch_is_listed_again_even_if_the_watch_could_resume(world: World, book: Book) -> None:
    await world.order()
    await world.clock.advance(1)
    world.wire.cut()
    await world.clock.advance(1)
    await set_epoch(world, 2)
    await world.delete()
    world.wire.mend()
    await world.clock.advance(30)
    assert [(names, source.epoch) for names, source in book.lists] == [(set(), 1), (set(), 2)]
    # The deletion is for the list of the new epoch to judge, not a word of the old one.
    assert [gone for _, gone, _ in book.changes] == [False]


async def test_a_watch_that_fell_behind_lists_again(tmp_path: Path) -> None:
    world = World(tmp_path, ManualClock())
    world.store = MemoryStore(clock=world.clock, history_most=5)
    world.wire.store = world.store
    await world.found()
    await world.apply()
    book = Book()
    feed = Feed(world.wire, "instance", Filter(node="n1"), world.clock, book, DirectLink(world.wire, "n1").cluster)
    running = asyncio.ensure_future(feed.run())
    await world.clock.advance(1)
    world.wire.cut()
    await world.clock.advance(1)
    for index in range(20):
        await world.order(index=index)
    world.wire.mend()
    await world.clock.advance(60)
    assert len(book.lists[-1][0]) == 20
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_feed_backs_off_while_no_server_answers(world: World, book: Book) -> None:
    world.wire.cut()
    await world.clock.advance(3600)
    assert 200 < len(book.losses) < 400


async def test_a_watch_without_data_is_restarted(world: World) -> None:
    book = Book()
    store = MemoryStore(bookmark_seconds=1e9)
    link = DirectLink(world.wire, "n1")
    feed = Feed(store, "instance", Filter(node="n1"), world.clock, book, link.cluster, stall_seconds=0.001)
    running = asyncio.ensure_future(feed.run())
    async with asyncio.timeout(20):
        while not book.losses:
            await asyncio.sleep(0)
    assert book.losses == [1]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
