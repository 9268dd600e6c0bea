"""How fast the stores write, how much an instance weighs, what a watched change costs.

python bench/store.py [--json FILE] [--only NAME …] [--runs N]

The best of a few runs is kept: whatever else the machine does can only make a run slower.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import uvloop

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.machine import machine  # noqa: E402
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus  # noqa: E402
from mandor.model.meta import Meta, Object  # noqa: E402
from mandor.model.phase import Phase  # noqa: E402
from mandor.store.base import Filter, Put, Store  # noqa: E402
from mandor.store.memory import MemoryStore  # noqa: E402
from mandor.store.sqlite import SqliteStore  # noqa: E402

INSTANCES = 100_000


@dataclass(frozen=True)
class Figure:
    """One line of the table; `wanted` is what it must reach: `>= 10` or `<= 1024`.

    A ratio names the two figures it is `of`, and is taken of their best.
    """

    name: str
    value: float
    unit: str
    wanted: str = ""
    of: tuple[str, str] | None = None

    @property
    def reached(self) -> bool | None:
        if not self.wanted:
            return None
        sign, bound = self.wanted.split()
        return self.value >= float(bound) if sign == ">=" else self.value <= float(bound)


NODES = [f"node-{number:04}" for number in range(500)]
"""An instance's node is the node's own name, not a copy of it."""


def instance(number: int, prefix: str = "web") -> Instance:
    """An instance as the cluster keeps it: bound, running, with an address."""
    return Instance(
        meta=Meta(name=f"{prefix}-{number}", namespace="default"),
        spec=InstanceSpec(workload=prefix, release="web.1", index=number, node=NODES[number % 500]),
        status=InstanceStatus(
            phase=Phase.RUNNING,
            ready=True,
            engine="process",
            address=f"10.1.{number // 250 % 250}.{number % 250}",
            since=1_700_000_000.0 + number,
            started_at=1_700_000_000.5 + number,
        ),
    )


async def timed(work: Awaitable[object]) -> float:
    gc.collect()
    begun = time.perf_counter()
    await work
    return time.perf_counter() - begun


class Holds:
    """Longest time that the event loop was blocked."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            self.longest = max(self.longest, time.perf_counter() - begun - 0.001)

    async def stop(self) -> float:
        await asyncio.sleep(0.003)  # it sees a hold when it is over
        self._task.cancel()
        return self.longest


# SQLite.

ALONE = "sqlite: one writer, one object a commit"
GROUP = "sqlite: 200 writers, one object a commit"


async def write(store: Store, batches: Sequence[Sequence[Object]], writers: int) -> float:
    """Commits a second, the batches dealt out to so many writers that each wait for their own."""

    async def one(mine: Sequence[Sequence[Object]]) -> None:
        for batch in mine:
            await store.commit(*[Put(item) for item in batch])

    return len(batches) / await timed(asyncio.gather(*[one(batches[number::writers]) for number in range(writers)]))


async def sqlite_figures(folder: Path) -> list[Figure]:
    async with await SqliteStore.open(folder / "state.db") as store:
        alone = await write(store, [[instance(number, "alone")] for number in range(1_000)], 1)
        holds = Holds()
        together = await write(store, [[instance(number, "group")] for number in range(30_000)], 200)
        held = await holds.stop()
        items = [instance(number, "bulk") for number in range(60_000)]
        bulk = await write(store, [items[start : start + 100] for start in range(0, len(items), 100)], 8)
    return [
        Figure(ALONE, alone, "commits/s"),
        Figure(GROUP, together, "commits/s", ">= 20000"),
        Figure("sqlite: 200 writers against one", 0, "x", ">= 10", of=(GROUP, ALONE)),
        Figure("sqlite: stream of 100-object commits, 8 on their way", bulk * 100, "objects/s", ">= 60000"),
        Figure("sqlite: longest hold of the event loop, 200 writers", held * 1000, "ms", "<= 20"),
    ]


# Memory.

WEIGH = """
import asyncio, gc, sys
from pathlib import Path
import psutil
sys.path.insert(0, sys.argv[1])
from bench.store import INSTANCES, instance
from mandor.store.base import Put
from mandor.store.sqlite import SqliteStore

async def main():
    rss = psutil.Process().memory_info
    async with await SqliteStore.open(Path(sys.argv[2])) as store:
        await store.commit(Put(instance(0, "warm")))
        gc.collect()
        before = rss().rss
        if sys.argv[3] == "fill":
            for start in range(0, INSTANCES, 100):
                await store.commit(*[Put(instance(number)) for number in range(start, start + 100)])
        gc.collect()
        print(rss().rss - before)

async def load():
    gc.collect()
    before = psutil.Process().memory_info().rss
    async with await SqliteStore.open(Path(sys.argv[2])) as store:
        gc.collect()
        assert len(store.index) > INSTANCES
        print(psutil.Process().memory_info().rss - before)

asyncio.run(main() if sys.argv[3] == "fill" else load())
"""


async def memory_figures(folder: Path) -> list[Figure]:
    """Resident memory of a process of its own, with the history of the last changes and SQLite's cache."""
    path = str(folder / "weigh.db")
    grown = {}
    for mode in ("fill", "load"):
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", WEIGH, str(ROOT), path, mode],
            capture_output=True,
            text=True,
            check=True,
        )
        grown[mode] = int(done.stdout) / INSTANCES
    return [
        Figure("memory: an instance, just written", grown["fill"], "bytes", "<= 1024"),
        Figure("memory: an instance, after a restart", grown["load"], "bytes", "<= 1024"),
    ]


# Watches.


async def watch_figures(folder: Path) -> list[Figure]:
    """A burst of 100 changes to 1,000 watchers of the kind; then 5,000 watchers by node, one change each."""
    store = MemoryStore()
    left = 0

    async def follow(watch: object) -> None:
        nonlocal left
        async for batch in watch:  # type: ignore[attr-defined]
            left -= sum(not change.bookmark for change in batch)

    watchers = [asyncio.create_task(follow(store.watch("instance", since=0))) for _ in range(1_000)]
    await asyncio.sleep(0.1)
    left = 100 * 1_000
    holds = Holds()
    gc.collect()
    begun = time.process_time()
    await store.commit(*[Put(instance(number)) for number in range(100)])
    while left > 0:
        await asyncio.sleep(0)
    spent = time.process_time() - begun
    held = await holds.stop()
    for watcher in watchers:
        watcher.cancel()
    await asyncio.gather(*watchers, return_exceptions=True)

    store = MemoryStore()
    agents = [
        asyncio.create_task(follow(store.watch("instance", since=0, where=Filter(node=f"node-{number:04}"))))
        for number in range(5_000)
    ]
    await asyncio.sleep(0.2)
    left = 500
    begun = time.process_time()
    for number in range(500):
        await store.commit(Put(instance(number)))
    while left > 0:
        await asyncio.sleep(0)
    by_node = time.process_time() - begun
    for agent in agents:
        agent.cancel()
    await asyncio.gather(*agents, return_exceptions=True)
    return [
        Figure("watch: 100 changes to 1,000 watchers, a delivery", spent / 100_000 * 1e6, "us of CPU", "<= 1"),
        Figure("watch: that burst's longest hold of the event loop", held * 1000, "ms"),
        Figure("watch: commit and delivery to one of 5,000 by node", by_node / 500 * 1e6, "us of CPU"),
    ]


async def list_figures(folder: Path) -> list[Figure]:
    store = MemoryStore()
    for start in range(0, INSTANCES, 100):
        await store.commit(*[Put(instance(number)) for number in range(start, start + 100)])
    first = await timed(store.list("instance"))
    await store.commit(Put(instance(0, "other")))
    again = await timed(store.list("instance"))
    return [
        Figure("list: 100,000 instances, the first time", first * 1000, "ms"),
        Figure("list: 100,000 instances, after a change", again * 1000, "ms", "<= 20"),
    ]


# etcd.

PUTS = "etcd: plain puts, 64 writers"
COMMITS = "etcd: one-object commits, 64 writers"


async def etcd_figures(folder: Path) -> list[Figure]:
    """The store's commits against plain puts of the same values over the same client."""
    from scripts.components import find

    binary = find("etcd")
    if binary is None:
        print("etcd is missing: `make components` gets it", file=sys.stderr)
        return []
    from mandor.model.codec import encode
    from mandor.store.access import NOBODY
    from mandor.store.etcd import EtcdStore
    from mandor.store.etcd_client import EtcdClient
    from mandor.store.etcd_wire import PUT
    from tests.components.etcd import start_etcd

    etcd = await asyncio.to_thread(start_etcd, binary, folder / "etcd")
    try:
        client = EtcdClient(etcd.endpoints, NOBODY)
        values = [encode(instance(number)) for number in range(3_000)]

        async def put(mine: Sequence[int]) -> None:
            for number in mine:
                await client.call(PUT, PUT.request(key=f"/raw/{number}".encode(), value=values[number]))

        await put(range(100))
        raw = ours = 0.0
        async with await EtcdStore.open(etcd.endpoints) as store:
            await write(store, [[instance(number, "warm")] for number in range(100)], 1)
            for turn in range(3):  # in turns: what else the machine does hits both
                spent = await timed(asyncio.gather(*[put(range(start, 3_000, 64)) for start in range(64)]))
                raw = max(raw, len(values) / spent)
                ours = max(ours, await write(store, [[instance(n, f"turn{turn}")] for n in range(3_000)], 64))
            items = [instance(number, "bulk") for number in range(10_000)]
            bulk = await write(store, [items[start : start + 100] for start in range(0, len(items), 100)], 8)
        await client.close()
    finally:
        await asyncio.to_thread(etcd.stop)
    return [
        Figure(PUTS, raw, "puts/s"),
        Figure(COMMITS, ours, "commits/s"),
        Figure("etcd: plain puts against commits", 0, "x", "<= 2", of=(PUTS, COMMITS)),
        Figure("etcd: stream of 100-object commits, 8 on their way", bulk * 100, "objects/s"),
    ]


BENCHES: dict[str, Callable[[Path], Awaitable[list[Figure]]]] = {
    "sqlite": sqlite_figures,
    "memory": memory_figures,
    "watch": watch_figures,
    "list": list_figures,
    "etcd": etcd_figures,
}


def best(runs: Sequence[Sequence[Figure]]) -> list[Figure]:
    """Return the best run for each figure: the greatest speed or the least time."""
    found: dict[str, Figure] = {}
    for same in zip(*runs, strict=True):
        choose = max if same[0].unit.endswith("/s") else min
        figure = choose(same, key=lambda each: each.value)
        if figure.of is not None:
            above, below = figure.of
            figure = replace(figure, value=found[above].value / found[below].value)
        found[figure.name] = figure
    return list(found.values())


def measure(names: Sequence[str], runs: int) -> list[Figure]:
    found = []
    for name in names:
        results: list[list[Figure]] = []
        for _ in range(1 if name == "memory" else runs):
            with tempfile.TemporaryDirectory(dir=ROOT, prefix=".bench-") as folder:
                results.append(uvloop.run(BENCHES[name](Path(folder))))  # type: ignore[arg-type]
        found += best(results)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="keep the figures, and the machine they are from")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    facts = machine()
    figures = measure(options.only, options.runs)
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        mark = {None: "", True: "  reached", False: "  MISSED"}[figure.reached]
        print(f"{figure.name:{width}}  {figure.value:>12,.2f} {figure.unit:10} {figure.wanted:>9}{mark}")
    if options.json:
        rows = [
            {"name": f.name, "value": round(f.value, 3), "unit": f.unit, "wanted": f.wanted, "reached": f.reached}
            for f in figures
        ]
        Path(options.json).write_text(json.dumps({"machine": facts, "figures": rows}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
