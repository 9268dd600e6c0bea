"""Cost of watches over HTTP: memory of 5,000 open watches, CPU time of a burst to 1,000.

Bounds: 5,000 open watches below 1 GiB; 100 events to 1,000 watchers at most 1 µs of CPU a delivered event.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time

import uvloop
from _api import Reader, Server, report, request, server

from mandor.client.aio import Client
from mandor.store.base import Put
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance

MEMORY_BYTES_MOST = 2**30
MICROSECONDS_MOST = 1.0


async def open_watches(target: Server, paths: list[str]) -> list[Reader]:
    """All connected, each with its first bookmark."""
    loop = asyncio.get_running_loop()
    readers: list[Reader] = []
    for start in range(0, len(paths), 200):
        part = [
            Reader(request("GET", path, target.host, target.tokens["component"])) for path in paths[start : start + 200]
        ]
        await asyncio.gather(
            *[loop.create_connection(lambda each=each: each, target.host, target.port) for each in part]  # type: ignore[misc]
        )
        readers += part
        async with asyncio.timeout(120):
            while not all(each.lines or each.refused for each in part):
                await asyncio.sleep(0.01)
    assert not any(each.refused for each in readers), next(each.refused for each in readers if each.refused)
    return readers


def close(readers: list[Reader]) -> None:
    for each in readers:
        if each.transport is not None:
            each.transport.abort()


async def measure_open(target: Server, count: int) -> dict[str, object]:
    before = target.usage()
    readers = await open_watches(target, [f"/v1/watch?kind=instance&node=n{number}" for number in range(count)])
    after = target.usage()
    assert after["streams"] == count, after
    close(readers)
    while target.usage()["streams"]:
        await asyncio.sleep(0.1)
    grown = after["memory_bytes"] - before["memory_bytes"]
    return {
        "open_watches": count,
        "memory_mib": round(after["memory_bytes"] / 2**20, 1),
        "kib_a_watch": round(grown / count / 1024, 1),
        "cpu_ms_an_open": round((after["cpu_seconds"] - before["cpu_seconds"]) / count * 1000, 3),
        "within_bound": after["memory_bytes"] < MEMORY_BYTES_MOST,
    }


async def measure_burst(target: Server, watchers: int, events: int, rounds: int) -> dict[str, object]:
    readers = await open_watches(target, ["/v1/watch?kind=instance"] * watchers)
    async with RemoteStore(Client([target.url], token=target.tokens["component"])) as store:
        # What the commits cost without anybody watching is not the watchers'.
        alone = await _commit_rounds(target, store, events, rounds, "lease", [])
        burst = await _commit_rounds(target, store, events, rounds, "watched", readers)
    close(readers)
    delivered = watchers * events * rounds
    cpu = burst - alone
    return {
        "watchers": watchers,
        "events_a_burst": events,
        "delivered_events": delivered,
        "cpu_us_a_delivered_event": round(cpu / delivered * 1e6, 3),
        "cpu_us_with_the_commit": round(burst / delivered * 1e6, 3),
        "within_bound": cpu / delivered * 1e6 <= MICROSECONDS_MOST,
    }


async def _commit_rounds(
    target: Server, store: RemoteStore, events: int, rounds: int, name: str, readers: list[Reader]
) -> float:
    """CPU seconds of the server for so many commits, until every reader has every event."""
    total = 0.0
    for turn in range(rounds):
        wanted = [each.lines + events for each in readers]
        before = target.usage()["cpu_seconds"]
        if readers:
            await store.commit(*[Put(make_instance(f"{name}-{turn}-{number}")) for number in range(events)])
        else:
            await store.commit(*[Put(_unwatched(f"{name}-{turn}-{number}")) for number in range(events)])
        deadline = time.monotonic() + 60
        while any(each.lines < count for each, count in zip(readers, wanted, strict=True)):
            assert time.monotonic() < deadline, "not every event arrived"
            await asyncio.sleep(0.02)
        total += target.usage()["cpu_seconds"] - before
    return total


def _unwatched(name: str) -> object:
    """Return an object of the size of an instance, of a kind without watches."""
    from mandor.model.meta import Meta
    from mandor.model.record import Event, EventSpec

    spec = EventSpec(about="instance default/web-0", reason="Test", message="x" * 60, source="bench")
    return Event(meta=Meta(name=name, namespace="default"), spec=spec)


async def main(options: argparse.Namespace) -> int:
    with server() as target:
        memory = await measure_open(target, options.watches)
        burst = await measure_burst(target, options.watchers, options.events, options.rounds)
    report("api_watch", {"open": memory, "burst": burst}, options.json)
    return 0 if memory["within_bound"] and burst["within_bound"] else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watches", type=int, default=5000)
    parser.add_argument("--watchers", type=int, default=1000)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", help="where to keep the result")
    sys.exit(uvloop.run(main(parser.parse_args())))
