"""Longest time that the event loop of a server with much state is blocked, for every kind of request.

python bench/holds.py [--nodes 5000] [--instances 100000] [--only PART] [--json FILE]

The steps of the event loop are measured in time of the processor, so that others on the machine do not count.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench._api import report
from bench._loads import LOADS
from bench._steps import Steps
from bench.end_to_end import add_nodes, manifest, node, serve
from mandor.bench.home import open_home
from mandor.errors import Conflict, Expired
from mandor.lib import logs
from mandor.lib.quantity import Seconds
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.record import HeartbeatSummary, HeartbeatSummarySpec
from mandor.roots.settings import ServerSettings
from mandor.store.base import WRITES_MOST, Change, Put, Store, Write

PART_SECONDS = 600.0
SHOWN = 8
LIMIT_MS = 20.0
CONFLICT = 409
YAML = "application/yaml"


class Agents:
    """Acts as the agents of all nodes: bound instances run, stopping instances have stopped."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.phases: Counter[tuple[str, Phase]] = Counter()
        """By workload."""
        self.working = True

    async def run(self) -> None:
        while True:
            listing = await self._store.list(Instance.kind)
            self.phases.clear()
            await self._see([Change(listing.revision, None, each) for each in listing.items])
            with contextlib.suppress(Expired):
                async for changes in self._store.watch(Instance.kind, since=listing.revision):
                    await self._see(changes)

    def count(self, workload: str, *phases: Phase) -> int:
        return sum(self.phases[workload, each] for each in phases or Phase)

    async def _see(self, changes: Any) -> None:
        writes: list[Write] = []
        for change in changes:
            before, after = change.before, change.after
            if isinstance(before, Instance):
                self.phases[before.spec.workload, before.phase] -= 1
            if isinstance(after, Instance):
                self.phases[after.spec.workload, after.phase] += 1
                if self.working and after.spec.node:
                    status = _next(after)
                    if status is not None:
                        writes.append(Put(after.changed(status=status)))
        for start in range(0, len(writes), WRITES_MOST):
            await self._write(writes[start : start + WRITES_MOST])

    async def _write(self, writes: list[Write]) -> None:
        try:
            await self._store.commit(*writes)
        except Conflict:
            for each in writes if len(writes) > 1 else ():
                await self._write([each])


def _next(instance: Instance) -> InstanceStatus | None:
    if instance.phase.over:
        return None
    if instance.spec.stop is not None:
        return InstanceStatus(phase=Phase.STOPPED, since=time.time())
    if instance.phase is Phase.RESERVED:
        return InstanceStatus(phase=Phase.RUNNING, ready=True, since=time.time(), started_at=time.time())
    return None


class Driver:
    def __init__(self, url: str, store: Store, agents: Agents, nodes: int, instances: int) -> None:
        self.url, self.store, self.agents, self.nodes, self.instances = url, store, agents, nodes, instances

    async def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> int:
        return await asyncio.to_thread(self._ask, method, path, body, kind)

    def _ask(self, method: str, path: str, body: bytes, kind: str) -> int:
        """In a thread: what a caller computes is not the server's."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=PART_SECONDS)
        try:
            connection.request(method, path, body or None, {"content-type": kind} if body else {})
            answer = connection.getresponse()
            first = b""
            while piece := answer.read(1 << 16):
                first = first or piece
            if answer.status >= 400:
                print(f"{method} {path}: {answer.status} {first[:400]!r}", file=sys.stderr)
            return answer.status
        finally:
            connection.close()

    async def apply(self, *manifests: dict[str, Any]) -> None:
        body = "\n---\n".join(json.dumps(each) for each in manifests).encode()
        await self.ask("POST", "/v1/apply", body, YAML)

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(PART_SECONDS):
            while not what():
                await asyncio.sleep(0.1)

    async def running(self, workload: str, count: int) -> None:
        agents = self.agents
        await self.until(lambda: agents.count(workload) == agents.count(workload, Phase.RUNNING) == count)


Part = Callable[[Driver], Awaitable[None]]
PARTS: dict[str, Part] = {}


def part(name: str) -> Callable[[Part], Part]:
    def keep(work: Part) -> Part:
        PARTS[name] = work
        return work

    return keep


def asking(name: str, *paths: str) -> None:
    @part(name)
    async def ask(driver: Driver) -> None:
        for path in paths:
            for _ in range(2):
                await driver.ask("GET", path)


async def fill(driver: Driver) -> None:
    """Half of them in one workload, the others in a hundred."""
    half = driver.instances // 2
    await driver.apply(manifest("large", half), *(manifest(f"web-{each}", half // 100) for each in range(100)))
    await driver.running("large", half)
    for each in range(100):
        await driver.running(f"web-{each}", half // 100)


@part("rest")
async def rest(driver: Driver) -> None:
    await asyncio.sleep(10)


asking("list instances", "/v1/instances?limit=1000", "/v1/instances?limit=1000&after=default/large-3")
asking("list by label", "/v1/instances?limit=1000&labels=nobody%3Dhere", "/v1/instances?namespace=default&limit=1000")
asking("list of a node", "/v1/instances?node=node-1", "/v1/instances?node=")
asking("list nodes", "/v1/nodes?limit=1000", "/v1/nodes?labels=zone%3Dz1")
asking("list workloads", "/v1/workloads", "/v1/workloads/large", "/v1/releases", "/v1/workloads/large/rollout")
asking("list events", "/v1/events?limit=1000")
asking("metrics", "/metrics")
asking("usage", "/v1/usage")
asking("snapshot", "/v1/snapshot?kind=instance", "/v1/snapshot")
asking("explain", "/v1/explain/workloads/large", "/v1/explain/instances/large-7")
asking("debug table", "/v1/debug/table")
asking("plan rebalance", "/v1/plan/rebalance")
asking("backup", "/v1/backup")
asking("openapi", "/v1/schema", "/openapi.json", "/docs")


@part("watch from behind")
async def watch_behind(driver: Driver) -> None:
    since = (await driver.store.list("cluster")).revision - 5_000

    def read() -> None:
        parts = urlsplit(driver.url)
        assert parts.hostname is not None
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=20)
        connection.request("GET", f"/v1/watch?kind=instance&since={since}")
        answer = connection.getresponse()
        for _ in range(200):
            if not answer.read1(1 << 16).strip():
                break
        connection.close()

    await asyncio.wait_for(asyncio.to_thread(read), 60)


@part("plan")
async def plan(driver: Driver) -> None:
    for replicas in (1000, 50_000):
        await driver.ask("POST", "/v1/plan", json.dumps(manifest("planned", replicas)).encode(), YAML)
    bodies = (json.dumps(manifest(f"planned-{each}", 2)) for each in range(100))
    await driver.ask("POST", "/v1/plan", "\n---\n".join(bodies).encode(), YAML)
    await driver.ask("POST", "/v1/plan", json.dumps({**manifest("large", 40_000), "image": "web:9"}).encode(), YAML)


@part("apply 1,000 objects")
async def apply_many(driver: Driver) -> None:
    await driver.apply(*(manifest(f"small-{each}", 1) for each in range(1000)))
    await driver.running("small-999", 1)


@part("apply 1,000 objects again")
async def apply_same(driver: Driver) -> None:
    await driver.apply(*(manifest(f"small-{each}", 1) for each in range(1000)))


@part("delete 1,000 objects")
async def delete_many(driver: Driver) -> None:
    bodies = (json.dumps(manifest(f"small-{each}", 1)) for each in range(1000))
    body = "\n---\n".join(bodies).encode()
    while await driver.ask("POST", "/v1/delete", body, YAML) == CONFLICT:
        await asyncio.sleep(1)
    await driver.until(lambda: not any(driver.agents.count(f"small-{each}") for each in range(1000)))


@part("scale up by 10,000")
async def scale_up(driver: Driver) -> None:
    count = driver.instances // 2 + 10_000
    await driver.apply(manifest("large", count))
    await driver.running("large", count)


@part("scale down by 10,000")
async def scale_down(driver: Driver) -> None:
    count = driver.instances // 2
    await driver.apply(manifest("large", count))
    await driver.running("large", count)


@part("roll out 10,000")
async def roll_out(driver: Driver) -> None:
    await driver.apply(manifest("rolled", 10_000))
    await driver.running("rolled", 10_000)
    update = {"max_surge": "20%", "min_healthy": "1s"}
    await driver.apply({**manifest("rolled", 10_000), "image": "web:2", "update": update})
    await asyncio.sleep(20)


@part("delete 10,000")
async def delete_large(driver: Driver) -> None:
    await driver.ask("DELETE", "/v1/workloads/rolled")
    await driver.until(lambda: not driver.agents.count("rolled"))


@part("nobody fits: 20,000 wait")
async def unplaceable(driver: Driver) -> None:
    big = {**manifest("big", 20_000), "resources": {"cpu": "33", "memory": "1Gi"}}
    await driver.apply(big)
    await driver.until(lambda: driver.agents.count("big", Phase.PENDING) == 20_000)
    await asyncio.sleep(10)


@part("a node joins while they wait")
async def node_joins(driver: Driver) -> None:
    for each in range(3):
        await driver.store.commit(Put(node(driver.nodes + each)))
        await asyncio.sleep(3)


@part("high priority comes")
async def preempt(driver: Driver) -> None:
    high = {**manifest("high", 200), "priority": 100_000, "resources": {"cpu": "31", "memory": "1Gi"}}
    await driver.apply(high)
    await driver.until(lambda: driver.agents.count("high") == 200)
    await asyncio.sleep(20)
    for name in ("high", "big"):
        await driver.ask("DELETE", f"/v1/workloads/{name}")
        await driver.until(lambda name=name: not driver.agents.count(name))  # type: ignore[misc]


@part("a daemon on every node")
async def daemon(driver: Driver) -> None:
    every = {**manifest("everywhere", 1), "type": "daemon"}
    del every["replicas"]
    await driver.apply(every)
    await driver.until(lambda: driver.agents.count("everywhere", Phase.RUNNING) >= driver.nodes)
    await driver.ask("DELETE", "/v1/workloads/everywhere")
    await driver.until(lambda: not driver.agents.count("everywhere"))


@part("a gang of 500")
async def gang(driver: Driver) -> None:
    await driver.apply({**manifest("together", 500), "type": "batch", "gang": {}})
    await driver.until(lambda: driver.agents.count("together", Phase.RUNNING) == 500)
    await driver.ask("DELETE", "/v1/workloads/together")
    await driver.until(lambda: not driver.agents.count("together"))


@part("drain 20 nodes")
async def drain(driver: Driver) -> None:
    for each in range(20):
        await driver.ask("PATCH", f"/v1/nodes/node-{each}", b'{"spec":{"drain":{}}}', "application/merge-patch+json")
    await asyncio.sleep(20)
    for each in range(20):
        await driver.ask("PATCH", f"/v1/nodes/node-{each}", b'{"spec":{"drain":null}}', "application/merge-patch+json")


@part("cordon 200 nodes")
async def cordon(driver: Driver) -> None:
    for flag in (b"true", b"false"):
        for each in range(200):
            body = b'{"spec":{"cordoned":%s}}' % flag
            await driver.ask("PATCH", f"/v1/nodes/node-{each}", body, "application/merge-patch+json")
    await asyncio.sleep(3)


@part("spread and apart")
async def spread(driver: Driver) -> None:
    rules = {"spread": [{"over": "zone", "strength": "should"}], "apart": [{"from": {"workload": "spread"}}]}
    await driver.apply({**manifest("spread", 2000), "placement": {"spread": rules["spread"]}})
    await driver.running("spread", 2000)
    await driver.ask("DELETE", "/v1/workloads/spread")
    await driver.until(lambda: not driver.agents.count("spread"))


@part("change what half of all are")
async def change_large(driver: Driver) -> None:
    """Change priority, labels and budget of a workload, which concern all its instances."""
    now: dict[str, Any] = {}
    for change in ({"priority": 5}, {"labels": {"tier": "front"}}, {"disruption": {"max_unavailable": "1%"}}):
        now |= change
        await driver.apply({**manifest("large", driver.instances // 2), **now})
        await asyncio.sleep(5)


@part("quota")
async def quota(driver: Driver) -> None:
    await driver.apply({"kind": "quota", "name": "all", "instances": 200_000})
    await driver.apply(manifest("web-1", driver.instances // 200 + 10))
    await asyncio.sleep(5)


@part("a hundred nodes fall silent")
async def lose_nodes(driver: Driver) -> None:
    names = tuple(sorted(f"node-{index}" for index in range(100, driver.nodes)))
    hearing = await driver.store.get(HeartbeatSummary(meta=Meta(name="agents"), spec=HeartbeatSummarySpec()).key)
    assert isinstance(hearing, HeartbeatSummary)
    await driver.store.commit(Put(hearing.changed(spec=HeartbeatSummarySpec(nodes=names))))
    await asyncio.sleep(30)


PARTS.update(LOADS)


@contextlib.asynccontextmanager
async def serving(options: argparse.Namespace) -> AsyncIterator[Driver]:
    with TemporaryDirectory(prefix="mandor-holds-") as folder:
        async with open_home(options.store) as (store, _):
            await add_nodes(store, options.nodes)
            settings = ServerSettings(
                data=folder,
                listen="127.0.0.1:0",
                store="memory:",
                suspect_after=Seconds(6),
                lost_after=Seconds(12),
                requests_each=10_000,
            )
            url = asyncio.get_running_loop().create_future()
            agents = Agents(store)
            tasks = [
                asyncio.create_task(serve(settings, store, url), name="bench server"),
                asyncio.create_task(agents.run(), name="bench agents"),
            ]
            driver = Driver(await url, store, agents, options.nodes, options.instances)
            await driver.ask("GET", "/readyz")
            await asyncio.sleep(1.5)  # the leaders have been elected, and their mirrors are full
            try:
                yield driver
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


def told(steps: Steps) -> dict[str, Any]:
    found, longest = steps.take()
    over = [each for each in found if each.cpu_ms > LIMIT_MS]
    by_place: dict[str, dict[str, Any]] = {}
    for each in found:
        known = by_place.setdefault(f"{each.who} | {each.where}", {"cpu_ms": round(each.cpu_ms, 1), "times": 0})
        known["times"] += 1
        if each.garbage_ms > 1:
            known["garbage_ms"] = round(max(each.garbage_ms, known.get("garbage_ms", 0.0)), 1)
    return {
        "longest_step_ms": round(found[0].cpu_ms, 1) if found else 0.0,
        "longest_pass_ms": round(longest, 1),
        f"steps_over_{LIMIT_MS:g}_ms": len(over),
        "long": [{"step": step, **each} for step, each in list(by_place.items())[:SHOWN]],
    }


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    results: dict[str, Any] = {}
    steps = Steps()
    steps.begin()

    async def look(name: str, work: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(PART_SECONDS):
                await work
        except TimeoutError:
            print(f"{name} did not end", file=sys.stderr)
        results[name] = told(steps)
        print(json.dumps({name: results[name]}, indent=1), file=sys.stderr, flush=True)

    asyncio.current_task().set_name("bench")  # type: ignore[union-attr]
    async with serving(options) as driver:
        steps.quiet()
        results["start"] = told(steps)
        await look("fill", fill(driver))
        names = list(PARTS)
        for name in names[names.index(options.since) if options.since else 0 :]:
            work = PARTS[name]
            if not options.only or any(each in name for each in options.only):
                await look(name, work(driver))
    steps.end()
    return {"nodes": options.nodes, "instances": options.instances, "store": options.store, "parts": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=["memory", "sqlite"], default="sqlite")
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--instances", type=int, default=100_000)
    parser.add_argument("--only", action="append", help="parts whose names contain this")
    parser.add_argument("--since", help="begin with this part")
    parser.add_argument("--json", help="keep the results here, with the machine")
    options = parser.parse_args()
    logs.set_up("console", "warning")
    report("holds", asyncio.run(measure(options)), options.json)


if __name__ == "__main__":
    main()
