"""Counts what each step of the event loop runs of scheduler, controllers and API with very many instances.

In lines of Python, not in time. A process of its own: to trace one slows it down, and Python 3.11 may stand still when
tracing begins at the moment another thread asks for its turn. It prints the most lines of a step, and where they were:
of what looks after all that is there, and of decisions.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from traceback import extract_stack, format_list
from types import FrameType
from typing import Any

from msgspec.structs import replace

import mandor
from mandor.api.app import build_app
from mandor.api.gauges import ClusterGauges
from mandor.api.heartbeat import Heartbeats
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.baremetal.settings import VmRequestSettings
from mandor.baremetal.sweeper import RequestSweeper
from mandor.baremetal.worker import CLAIMS
from mandor.controllers.catalog import make_controllers
from mandor.controllers.garbage import SWEEP, GarbageController
from mandor.controllers.garbage_plan import Keep
from mandor.controllers.runner import run_all
from mandor.lib.clock import SystemClock
from mandor.lib.metrics import Metrics
from mandor.lib.quantity import Percent
from mandor.lib.tasks import Background
from mandor.model.autoscale import Autoscale
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Drain, Node
from mandor.model.quota import Quota, QuotaSpec
from mandor.model.rebalance import Rebalance, RebalanceSpec
from mandor.model.record import (
    Cluster,
    ClusterSpec,
    Event,
    EventSpec,
    HeartbeatSummary,
    HeartbeatSummarySpec,
    Lease,
    LeaseSpec,
)
from mandor.model.vm_request import VmRequest, VmRequestSpec, VmRequestStatus
from mandor.model.workload import Workload
from mandor.placement.profiles import default_profile
from mandor.scheduler.loop import Scheduler
from mandor.store.base import WRITES_MOST, Put
from mandor.store.dump import dump
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_instance, make_node, make_stored_release, make_workload

INSTANCES = 15_000
NODES = 200
MANY = 24_000
"""Where so many lines have run is remembered."""
SOURCE = str(Path(mandor.__file__).parent)
LARGE = Key(Workload.kind, "default", "web")


class Lines:
    """Counts what each step runs of mandor's own source, once it is started."""

    def __init__(self) -> None:
        self.most, self.where = 0, ""
        self._count = 0
        self._last = ""

    def start(self) -> None:
        sys.settrace(self._enter)

    def stop(self) -> None:
        sys.settrace(None)

    def take(self) -> tuple[int, str]:
        """Of the longest step since the last time."""
        found, self.most, self.where = (self.most, self.where), 0, ""
        return found

    def run(self, plain: Callable[[asyncio.Handle], None]) -> Callable[[asyncio.Handle], None]:
        def counted(handle: asyncio.Handle) -> None:
            self._count = 0
            plain(handle)
            if self._count > self.most:
                self.most, self.where = self._count, self._last

        return counted

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(SOURCE) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        self._count += event == "line"
        if self._count == MANY:
            self._last = "".join(format_list(extract_stack(frame)[-8:]))
        return self._line


@asynccontextmanager
async def filled() -> AsyncIterator[MemoryStore]:
    """One large workload, all of it running."""
    workload = make_workload(replicas=INSTANCES, cpu="10")
    names = [f"n{number}" for number in range(NODES)]
    nodes = [make_node(name, cpu=4000, version=1, labels={"zone": f"z{name[-1]}"}) for name in names]
    instances = [make_instance(index, node=names[index % NODES]) for index in range(INSTANCES)]
    others: list[Object] = [
        Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("test")),
        Lease(meta=Meta(name="server-agents"), spec=LeaseSpec(holder="agents", seconds=3600)),
        HeartbeatSummary(meta=Meta(name="agents"), spec=HeartbeatSummarySpec(nodes=tuple(sorted(names)))),
    ]
    async with MemoryStore() as made:
        made.index.load([workload, make_stored_release(workload), *nodes, *instances, *others])
        made.index.start_at(1)
        yield made


@asynccontextmanager
async def running(store: MemoryStore) -> AsyncIterator[Scheduler]:
    clock = SystemClock()
    recorder = Recorder(store, "test", clock)
    scheduler = Scheduler(store, clock, recorder)
    controllers = make_controllers(store, clock, recorder, profiles=lambda _: {"default": default_profile()})
    async with Background() as tasks:
        tasks.start(scheduler.run())
        tasks.start(run_all(controllers, store, clock))
        yield scheduler


async def read(store: MemoryStore, key: Key) -> Any:
    return await store.get(key)


async def ready(store: MemoryStore) -> int:
    return int((await read(store, LARGE)).status.ready)


async def until(what: Callable[[], Any]) -> None:
    async with asyncio.timeout(120):
        while not await what():
            await asyncio.sleep(0.1)


async def ask(app: Any, path: str) -> int:
    """As a caller on this machine, without a connection."""
    path, _, query = path.partition("?")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "client": ("127.0.0.1", 1)}
    await app({**scope, "headers": [(b"host", b"127.0.0.1")]}, receive, send)
    status: int = sent[0]["status"]
    return status


async def play(store: MemoryStore, lines: Lines) -> None:
    clock = SystemClock()
    heartbeats = Heartbeats(store, clock, "s1", "")
    parts = ApiParts(store, clock, heartbeats, ApiSettings(tokens_required=False))
    app = build_app(parts)

    async with running(store) as scheduler, ClusterGauges(store, heartbeats, clock) as gauges:
        metrics = Metrics()
        metrics.add(gauges.families)
        await until(lambda: ready(store))
        lines.start()
        for path in (
            "/v1/instances?namespace=default&labels=nobody%3Dhere",
            "/v1/instances?node=",
            "/v1/workloads/web/rollout",
        ):
            assert await ask(app, path) == 200
        await gauges.prepare()
        await metrics.text()
        report = await scheduler.compare_table()
        assert report.differences == ()
        async for _ in dump(store):
            pass
        workload = await read(store, LARGE)
        fewer = {name: replace(group, replicas=INSTANCES - 10) for name, group in workload.spec.groups.items()}
        await store.commit(Put(workload.changed(spec=replace(workload.spec, groups=fewer))))
        node: Node = await read(store, Key(Node.kind, "", "n1"))
        await store.commit(Put(node.changed(spec=replace(node.spec, drain=Drain()))))

        async def begun() -> bool:
            found = [each for each in store.index.objects.values() if isinstance(each, Instance)]
            moved = any(each.spec.move is not None for each in found)
            return moved and any(each.spec.stop is not None for each in found)

        await until(begun)
        await store.commit(Put(Quota(meta=Meta(name="all", namespace="default"), spec=QuotaSpec(instances=10**6))))

        async def counted() -> bool:
            quota: Quota = await read(store, Key(Quota.kind, "default", "all"))
            return (quota.status.used.instances or 0) > INSTANCES // 2

        await until(counted)
        await look_after(store)
        lines.stop()


async def decide(store: MemoryStore, lines: Lines) -> None:
    async with running(store):
        await until(lambda: ready(store))
        lines.start()
        await place(store)
        lines.stop()


async def look_after(store: MemoryStore) -> None:
    """What is done now and then: counts follow the load, and what is old goes."""
    workload: Workload = await read(store, LARGE)
    scaling = Autoscale(max=INSTANCES, min=INSTANCES - 10, cpu=Percent(70))
    groups = {name: replace(group, autoscale=scaling) for name, group in workload.spec.groups.items()}
    await store.commit(Put(workload.changed(spec=replace(workload.spec, groups=groups))))

    async def thought_about() -> bool:
        return bool((await read(store, LARGE)).status.autoscale)

    await until(thought_about)
    await store.commit(Put(Rebalance(meta=Meta(name="now"), spec=RebalanceSpec(moves=1))))

    async def searched() -> bool:
        return bool((await read(store, Key(Rebalance.kind, "", "now"))).status.planned_at)

    await until(searched)
    clock = SystemClock()
    await fill_up(store, lambda number: make_event(number, clock.now()))
    sweeper = GarbageController(store, clock, Keep(events_most=100))
    sweeper.begin({})
    await sweeper.reconcile(SWEEP)
    assert 0 < len((await store.list(Event.kind)).items) < INSTANCES // 2
    await fill_up(store, lambda number: make_task(number, clock.now()))
    mirrors = Mirror(store, VmRequest.kind), Mirror(store, Instance.kind, CLAIMS), Mirror(store, Node.kind)
    async with mirrors[0], mirrors[1], mirrors[2]:
        for mirror in mirrors:
            await mirror.synced()
        settings = VmRequestSettings(kept_most=INSTANCES - 100)
        await RequestSweeper(store, clock, Recorder(store, "test", clock), mirrors, lambda _: None, settings).look()
    assert len((await store.list(VmRequest.kind)).items) == INSTANCES - 100


async def fill_up(store: MemoryStore, make: Callable[[int], Object]) -> None:
    for start in range(0, INSTANCES, WRITES_MOST):
        await store.commit(*(Put(make(number)) for number in range(start, start + WRITES_MOST)))
        await asyncio.sleep(0)


def make_event(number: int, now: float) -> Event:
    spec = EventSpec(about="instance default/web-0", reason="Told", message="so", source="test", last_at=now)
    return Event(meta=Meta(name=f"told-{number}", namespace="default"), spec=spec)


def make_task(number: int, now: float) -> VmRequest:
    spec, status = VmRequestSpec(cpu=1, memory_mib=1), VmRequestStatus(state="Released", since=now - number / INSTANCES)
    return VmRequest(meta=Meta(name=f"t-{number}", namespace="default"), spec=spec, status=status)


async def place(store: MemoryStore) -> None:
    """A gang, those who are spread, and those for whom others have to make room."""
    made = [
        make_workload("gang", version=0, replicas=80, cpu="1", gang={}),
        make_workload("even", version=0, replicas=500, cpu="1", placement={"spread": [{"over": "zone"}]}),
        make_workload("high", version=0, replicas=5, cpu="3800", priority=1000),
    ]
    for workload in made:
        release = make_stored_release(workload)
        await store.commit(Put(workload), Put(release.changed(meta=replace(release.meta, version=0))))
        names = [f"{workload.meta.name}-{index}" for index in range(workload.spec.groups["main"].count)]

        async def placed(names: list[str] = names) -> bool:
            found = [await read(store, Key(Instance.kind, "default", name)) for name in names]
            return all(each is not None and (each.spec.node or each.status.nominated) for each in found)

        await until(placed)


async def main() -> None:
    lines = Lines()
    asyncio.Handle._run = lines.run(asyncio.Handle._run)  # type: ignore[method-assign, assignment]
    counted = []
    for work in (play, decide):
        async with filled() as store:
            await work(store, lines)
        counted.append(lines.take())
    print(json.dumps(counted))


if __name__ == "__main__":
    asyncio.run(main())
