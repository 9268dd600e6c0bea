"""Time from an apply over HTTP to the last bind, with API, controllers and scheduler in one process, without agents.

python bench/end_to_end.py [--store sqlite|etcd|memory] [--nodes 5000] [--count 20000] [--workloads 1]
                           [--profile FILE] [--trace] [--json FILE]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from bench._api import report
from bench._sampler import Sampler
from bench._server import HOLDS, lateness
from mandor.bench.home import open_home
from mandor.bench.meter import Meter, Scope, percentiles
from mandor.client.aio import Client
from mandor.errors import Invalid
from mandor.lib.quantity import Seconds
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus
from mandor.model.record import HeartbeatSummary, HeartbeatSummarySpec, Lease, LeaseSpec
from mandor.model.resources import Resources
from mandor.roots import server
from mandor.roots.settings import ServerSettings
from mandor.store.base import WRITES_MOST, Put, Store

GI = 1024**3


def node(index: int) -> Node:
    return Node(
        meta=Meta(name=f"node-{index}", labels={"zone": f"z{index % 10}"}),
        spec=NodeSpec(),
        status=NodeStatus(
            phase=NodePhase.READY,
            capacity=Resources(32_000, 256 * GI, 1000 * GI),
            engines={"docker": Capabilities(images=True)},
        ),
    )


def manifest(name: str, replicas: int, engine: str = "docker") -> dict[str, Any]:
    size = {"cpu": "100m", "memory": "500Mi"}
    return {"name": name, "engine": engine, "image": "web:1", "replicas": replicas, "resources": size}


async def watch(store: Store, meter: Meter, wanted: int, done: asyncio.Event) -> None:
    since = (await store.list(Instance.kind)).revision
    async for changes in store.watch(Instance.kind, since=since):
        for change in changes:
            before, after = change.before, change.after
            if isinstance(after, Instance) and after.spec.node and not (before is not None and before.spec.node):
                meter.count_bind(after)
        if len(meter.bound) >= wanted:
            done.set()


async def add_nodes(store: Store, count: int) -> None:
    """Return nodes and a receiver of their heartbeats."""
    for start in range(0, count, WRITES_MOST):
        await store.commit(*(Put(node(index)) for index in range(start, min(count, start + WRITES_MOST))))
    names = tuple(sorted(f"node-{index}" for index in range(count)))
    await store.commit(
        Put(Lease(meta=Meta(name="server-agents"), spec=LeaseSpec(holder="agents", seconds=3600))),
        Put(HeartbeatSummary(meta=Meta(name="agents"), spec=HeartbeatSummarySpec(nodes=names))),
    )


async def measure(home: str, nodes: int, count: int, workloads: int, profile: str) -> dict[str, Any]:
    meter, done, late = Meter(), asyncio.Event(), list[float]()
    sampler = Sampler()
    with TemporaryDirectory(prefix="mandor-e2e-") as folder:
        async with open_home(home) as (store, others):
            await add_nodes(store, nodes)
            settings = ServerSettings(
                data=folder,
                listen="127.0.0.1:0",
                store="memory:",
                suspect_after=Seconds(3600),
                lost_after=Seconds(7200),
            )
            url = asyncio.get_running_loop().create_future()
            serving = asyncio.create_task(serve(settings, store, url))
            watching = asyncio.create_task(watch(store, meter, count, done))
            looking = asyncio.create_task(lateness(late))
            async with Client([await url]) as client:
                await client.request("GET", "/readyz")
                await asyncio.sleep(1.5)  # the leaders have been elected, and their mirrors are full
                texts = [json.dumps(manifest(f"web-{index}", count // workloads)) for index in range(workloads)]
                bodies = ["\n---\n".join(texts[at : at + 100]).encode() for at in range(0, workloads, 100)]
                late.clear()
                HOLDS.reset()
                used = others()
                meter.start(Scope(frozenset({"default"})))
                if profile:
                    sampler.start()
                for body in bodies:
                    await client.request("POST", "/v1/apply", body=body, content_type="application/yaml")
                async with asyncio.timeout(300):
                    await done.wait()
                sampler.stop()
                meter.stop()
            for task in (serving, watching, looking):
                task.cancel()
            await asyncio.gather(serving, watching, looking, return_exceptions=True)
            extra = {"etcd_cpu_seconds": round(others() - used, 2)} if home == "etcd" else {}
    if profile:
        with Path(profile).open("w") as out:
            sampler.show(out)
    results = meter.results()
    results.pop("decision_ms")
    held = {**percentiles(sorted(late), 1), "most": round(max(late), 1)}
    traced = {"longest_holds_cpu_ms": HOLDS.longest} if HOLDS.longest[0][1] else {}
    return {"store": home, "nodes": nodes, "workloads": workloads, **results, **extra, "loop_late_ms": held, **traced}


async def serve(settings: ServerSettings, store: Store, url: asyncio.Future[str]) -> None:
    """The real server, on a store that is open already."""

    @contextlib.asynccontextmanager
    async def opened() -> Any:
        yield store

    async def open_store(_: str, **__: Any) -> Any:
        return opened()

    made = server._url

    def _url(*arguments: Any, **named: Any) -> str:
        found = made(*arguments, **named)
        if not url.done():
            url.set_result(found)
        return found

    server.open_store, server._url = open_store, _url  # type: ignore[assignment]
    await server.serve(settings, dev=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=["memory", "sqlite", "etcd"], action="append")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--workloads", type=int, default=1)
    parser.add_argument("--profile", default="", help="write where the time goes to this file")
    parser.add_argument("--trace", action="store_true", help="tell who held the event loop longest, on asyncio's own")
    parser.add_argument("--json", help="keep the results here, with the machine")
    asked = parser.parse_args()
    found = {}
    if asked.trace:
        HOLDS.trace()
    run = asyncio.run if asked.trace else uvloop.run
    for home in asked.store or ["memory", "sqlite", "etcd"]:
        try:
            found[home] = run(measure(home, asked.nodes, asked.count, asked.workloads, asked.profile))
        except Invalid as error:
            if asked.store:
                raise
            print(f"{home} is left out: {error}", file=sys.stderr)
    report("end_to_end", found, asked.json)


if __name__ == "__main__":
    main()
