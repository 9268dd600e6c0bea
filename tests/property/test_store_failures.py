"""A SQLite store whose disk fails at random: the acknowledged is stored, the rest is not, and it goes on."""

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from mandor.errors import Conflict, Unavailable
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodeSpec
from mandor.store.base import Delete, Put, Write
from mandor.store.sqlite import SqliteStore
from mandor.store.state_file import StateFile
from mandor.testing.store import Watcher, make_node

WRITERS = 12
STEPS = 40


class FlakyFile(StateFile):
    """Now and then it writes nothing and says so."""

    chance: random.Random
    failures = 0

    def write(self, puts: list[str | bytes], gone: Sequence[str], revision: int) -> None:
        if self.chance.random() < 0.2:
            FlakyFile.failures += 1
            raise Unavailable("the disk has a bad moment")
        super().write(puts, gone, revision)


async def work(store: SqliteStore, number: int, seed: int) -> tuple[int, int]:
    """Change random objects, some of which others want, too; how often it went through and failed."""
    chance = random.Random(seed * 100 + number)
    done = failed = 0
    for step in range(STEPS):
        writes: list[Write] = []
        for name in chance.sample(range(10), chance.randint(1, 3)):
            found = await store.get(Key("node", "", f"n{name}"))
            if found is not None and chance.random() < 0.2:
                writes.append(Delete(found.key, found.meta.version))
            else:
                node = found if isinstance(found, Node) else make_node(f"n{name}")
                if chance.random() < 0.2:
                    node = node.changed(meta=Meta(name=f"n{name}", version=node.meta.version))
                writes.append(Put(node.changed(spec=NodeSpec(pool=f"p{number}-{step}"))))
        try:
            revision = await store.commit(*writes)
        except (Conflict, Unavailable):
            failed += 1
            continue
        done += 1
        assert store.index.revision >= revision
        if chance.random() < 0.3:
            await asyncio.sleep(0)
    return done, failed


@pytest.mark.req("S2-3")
@pytest.mark.parametrize("seed", range(6))
async def test_after_random_failures_memory_disk_and_watchers_agree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    FlakyFile.chance, FlakyFile.failures = random.Random(seed), 0
    path = tmp_path / "state.db"
    with monkeypatch.context() as patch:
        patch.setattr("mandor.store.state_writer.StateFile", FlakyFile)
        async with await SqliteStore.open(path) as store, Watcher(store, "node", since=0) as watcher:
            results = await asyncio.gather(*[work(store, number, seed) for number in range(WRITERS)])
            listing = await store.list("node")
            await watcher.until(lambda: bool(watcher.changes) and watcher.changes[-1].revision == listing.revision)
            changes = list(watcher.changes)
    assert FlakyFile.failures > 0
    assert sum(done for done, _ in results) > 0
    assert sum(failed for _, failed in results) > 0

    # Replaying the watch gives the state, and each change begins where the last one ended.
    replayed: dict[Key, Node] = {}
    for change in changes:
        assert replayed.get(change.key) == change.before
        if change.after is None:
            del replayed[change.key]
        else:
            assert isinstance(change.after, Node)
            replayed[change.key] = change.after
    assert [replayed[key] for key in sorted(replayed)] == list(listing.items)

    async with await SqliteStore.open(path) as store:
        assert list((await store.list("node")).items) == list(listing.items)
        assert store.index.revision == listing.revision
