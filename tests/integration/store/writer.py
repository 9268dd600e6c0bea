"""A process that writes to a SQLite store under load and prints what was acknowledged; the test kills it."""

import asyncio
import random
import sys

from mandor.errors import Conflict
from mandor.model.node import Node, NodeSpec
from mandor.store.base import Delete, Put, Write
from mandor.store.sqlite import SqliteStore
from mandor.testing.store import make_node

WRITERS = 16
NAMES = 8


async def write_for_ever(store: SqliteStore, number: int, seed: int) -> None:
    """Each writer has its own names, so its last acknowledged state must be stored."""
    chance = random.Random(seed * 1000 + number)
    step = 0
    while True:
        step += 1
        names = chance.sample(range(NAMES), chance.randint(1, 4))
        writes: list[Write] = []
        told: list[str] = []
        for name in names:
            node = make_node(f"w{number}-{name}")
            found = await store.get(node.key)
            if found is not None and chance.random() < 0.3:
                writes.append(Delete(found.key, found.meta.version))
                told.append(f"{node.meta.name}=gone")
            else:
                pool = f"p{seed}-{step}"
                value = (found if isinstance(found, Node) else node).changed(spec=NodeSpec(pool=pool))
                writes.append(Put(value))
                told.append(f"{node.meta.name}={pool}")
        print("try", *told, flush=False)
        sys.stdout.flush()
        try:
            revision = await store.commit(*writes)
        except Conflict as error:
            raise AssertionError("nobody else writes these") from error
        print("done", revision, *told)
        sys.stdout.flush()


async def main(path: str, seed: int) -> None:
    async with await SqliteStore.open(path) as store:
        print("open", store.index.revision, flush=True)
        await asyncio.gather(*[write_for_ever(store, number, seed) for number in range(WRITERS)])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
