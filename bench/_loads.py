"""More that can be asked of a server with much state: what its controllers and its keeper do now and then."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from bench.end_to_end import manifest
from mandor.model.meta import Key, Meta, Object
from mandor.model.record import Event, EventSpec, HeartbeatSummary, HeartbeatSummarySpec
from mandor.model.vm_request import VmRequest, VmRequestSpec, VmRequestStatus
from mandor.store.base import WRITES_MOST, Put, Store

if TYPE_CHECKING:
    from bench.holds import Driver

EVENTS = 40_000
TASKS = 20_000
CONNECTIONS = 5_000
SWEEP_SECONDS = 35
LOST = 500

LOADS: dict[str, Callable[[Driver], Awaitable[None]]] = {}


def load(name: str) -> Callable[[Callable[[Driver], Awaitable[None]]], Callable[[Driver], Awaitable[None]]]:
    def keep(work: Callable[[Driver], Awaitable[None]]) -> Callable[[Driver], Awaitable[None]]:
        LOADS[name] = work
        return work

    return keep


async def put_all(store: Store, values: Iterable[Object]) -> None:
    some: list[Put] = []
    for each in values:
        some.append(Put(each))
        if len(some) == WRITES_MOST:
            await store.commit(*some)
            some = []
    if some:
        await store.commit(*some)


@load("autoscale 50,000")
async def autoscale(driver: Driver) -> None:
    count = driver.instances // 2
    scaled = {**manifest("large", count), "autoscale": {"min": count, "max": count + 100, "cpu": "70%"}}
    await driver.apply(scaled)
    await asyncio.sleep(20)
    await driver.apply(manifest("large", count))


@load("autoscale nodes")
async def autoscale_nodes(driver: Driver) -> None:
    kind = {"cpu": "64", "memory": "256Gi", "engines": ["docker"]}
    scaling = {"provisioner": "fake", "kinds": {"big": kind}, "max": 10, "pending_for": "1s"}
    await driver.apply({"kind": "node-pool", "name": "default", "autoscale": scaling})
    await driver.apply({**manifest("wide", 1_000), "resources": {"cpu": "33", "memory": "1Gi"}})
    await asyncio.sleep(60)
    await driver.ask("DELETE", "/v1/workloads/wide")
    await driver.until(lambda: not driver.agents.count("wide"))
    await driver.apply({"kind": "node-pool", "name": "default", "autoscale": {**scaling, "max": 0}})
    await asyncio.sleep(10)


@load("1,000 runs at the same minute")
async def cron(driver: Driver) -> None:
    runs = {"type": "batch", "schedule": {"cron": ["* * * * *"], "keep": 1}}
    await driver.apply(*({**manifest(f"cron-{each}", 1), **runs} for each in range(1_000)))
    await asyncio.sleep(75)
    body = "\n---\n".join(json.dumps(manifest(f"cron-{each}", 1)) for each in range(1_000)).encode()
    while await driver.ask("POST", "/v1/delete", body, "application/yaml") == 409:
        await asyncio.sleep(1)
    await asyncio.sleep(5)


@load("rebalance")
async def rebalance(driver: Driver) -> None:
    await driver.apply({"kind": "rebalance", "name": "now", "moves": 5})
    await asyncio.sleep(90)


@load("200 could stand better")
async def restore(driver: Driver) -> None:
    rule = {"rule": "disk == ssd", "strength": "should"}
    await driver.apply({**manifest("second-best", 200), "placement": {"where": [rule]}})
    await driver.running("second-best", 200)
    await asyncio.sleep(30)
    await driver.ask("DELETE", "/v1/workloads/second-best")
    await driver.until(lambda: not driver.agents.count("second-best"))
    await asyncio.sleep(12)


@load("a reservation")
async def reservation(driver: Driver) -> None:
    each = {"resources": {"cpu": "1", "memory": "1Gi"}, "count": 100, "end": "2099-01-01T00:00:00Z"}
    await driver.apply({"kind": "reservation", "name": "held", **each})
    await asyncio.sleep(15)
    await driver.ask("DELETE", "/v1/reservations/held")


@load("20,000 kept tasks")
async def kept_tasks(driver: Driver) -> None:
    spec, now = VmRequestSpec(cpu=1, memory_mib=1024), time.time()
    status = VmRequestStatus(state="Released", since=now)
    await put_all(
        driver.store,
        (
            VmRequest(meta=Meta(name=f"t-{each}", namespace="default"), spec=spec, status=status)
            for each in range(TASKS)
        ),
    )
    await asyncio.sleep(10)


@load("40,000 events")
async def events(driver: Driver) -> None:
    """Half of them are too many."""
    hook = {"url": "http://127.0.0.1:9/", "secret": "nobody"}
    await driver.apply({"kind": "webhook", "name": "nowhere", **hook})
    now = time.time()
    await put_all(driver.store, (_event(each, now) for each in range(EVENTS)))
    await asyncio.sleep(SWEEP_SECONDS)


def _event(number: int, now: float) -> Event:
    spec = EventSpec(
        about=f"instance default/large-{number}", reason="Told", message="so", source="bench", first_at=now, last_at=now
    )
    return Event(meta=Meta(name=f"told-{number}", namespace="default"), spec=spec)


@load("a doctor comes")
async def doctor(driver: Driver) -> None:
    """Send the requests of `mandor doctor`."""
    for path in ("/readyz", "/v1/servers", "/v1/nodes", "/v1/instances?node=", "/v1/workloads"):
        await driver.ask("GET", path)


@load("5,000 connections end")
async def connections(driver: Driver) -> None:
    parts = urlsplit(driver.url)
    address = (str(parts.hostname), int(parts.port or 0))

    def begin() -> list[socket.socket]:
        found = []
        for _ in range(CONNECTIONS):
            each = socket.create_connection(address)
            each.sendall(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n")
            each.recv(4096)
            found.append(each)
        return found

    def end(found: list[socket.socket]) -> None:
        for each in found:
            each.close()

    await asyncio.to_thread(end, await asyncio.to_thread(begin))
    await asyncio.sleep(5)


@load("500 nodes fall silent")
async def lose_many(driver: Driver) -> None:
    names = tuple(sorted(f"node-{index}" for index in range(LOST, driver.nodes)))
    hearing: Any = await driver.store.get(Key(HeartbeatSummary.kind, "", "agents"))
    await driver.store.commit(Put(hearing.changed(spec=HeartbeatSummarySpec(nodes=names))))
    await asyncio.sleep(60)
