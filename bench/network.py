"""Data paths of services: time of one change among 5,000 services, requests through each path against direct ones, and
the time until 1,000 nodes have received a change.

Needs root and `nft`; everything runs in a network namespace of its own. Ratios compare rounds of one run that
alternate between the paths.

Bounds: a change among 5,000 services below 30 ms; requests through nftables within 10 % of direct ones; the last of
1,000 nodes has received a change within 250 ms (99th percentile).
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from bench._api import Reader, Server, allow_files, report, request, server
from mandor.client.aio import Client
from mandor.network.base import Balancer, Endpoint, Frontend, FrontendKey
from mandor.network.nftables import NftablesBalancer
from mandor.network.relay.balancer import RelayBalancer
from mandor.store.base import Put
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
RANGE = "10.93.0.0/16"
ENDPOINT = "10.92.0.1"
CHANGE_MS_MOST = 30.0
NFTABLES_SHARE_LEAST = 0.9
RECEIVED_MS_MOST = 250.0
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n" + b"x" * 100
QUESTION = b"GET / HTTP/1.1\r\nhost: shop\r\n\r\n"


def enter_own_network() -> None:
    """Move this process into a new network namespace with a loopback interface."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "this bench needs root for a network namespace")
    for words in (["link", "set", "lo", "up"], ["address", "add", ENDPOINT, "dev", "lo"]):
        subprocess.run(["ip", *words], check=True)


def frontend(number: int, endpoints: Sequence[Endpoint], *, address: str = "", port: int = 80) -> Frontend:
    virtual = address or f"10.93.{number >> 8}.{number & 255}"
    return Frontend(FrontendKey("default", f"s{number}", "http"), (virtual,), port, "tcp", tuple(endpoints))


def ten_endpoints(number: int, first: int = 0) -> list[Endpoint]:
    return [Endpoint(f"10.92.{number & 255}.{first + each + 1}", 8080, f"i-{each}", "n") for each in range(10)]


async def measure_changes(services: int, changes: int) -> dict[str, Any]:
    """Apply all services, then replace the endpoints of one service at a time."""
    balancer = NftablesBalancer("bench", [RANGE])
    table = [frontend(number, ten_endpoints(number)) for number in range(64, 64 + services)]
    begun = time.perf_counter()
    await balancer.apply(table)
    whole = time.perf_counter() - begun
    one, many = [], []
    for turn in range(changes):
        table[turn] = frontend(64 + turn, ten_endpoints(64 + turn, first=20))
        begun = time.perf_counter()
        await balancer.apply(table)
        one.append((time.perf_counter() - begun) * 1000)
    for turn in range(3):
        for number in range(min(500, services)):
            table[number] = frontend(64 + number, ten_endpoints(64 + number, first=40 + 20 * turn))
        begun = time.perf_counter()
        await balancer.apply(table)
        many.append((time.perf_counter() - begun) * 1000)
    await balancer.remove()
    median = statistics.median(one)
    return {
        "services": services,
        "endpoints_each": 10,
        "all_seconds": round(whole, 2),
        "one_change_ms_median": round(median, 1),
        "one_change_ms_p90": round(sorted(one)[int(len(one) * 0.9)], 1),
        "500_changes_ms_median": round(statistics.median(many)),
        "within_bound": median <= CHANGE_MS_MOST,
    }


class Answers(asyncio.Protocol):
    """Endpoint of the load: answers every request with 100 bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER * data.count(b"\r\n\r\n"))


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(Answers, ENDPOINT, port, backlog=1024)
    print("ready", flush=True)
    await listener.serve_forever()


@contextmanager
def endpoint(port: int) -> Iterator[None]:
    """Run `serve` in a process of its own."""
    process = subprocess.Popen([sys.executable, __file__, "--serve", str(port)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


class Asks(asyncio.Protocol):
    """One connection of the load: sends the next request when the answer has arrived."""

    def __init__(self) -> None:
        self.answers, self._left = 0, len(ANSWER)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        transport.write(QUESTION)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._left -= len(data)
        if not self._left:
            self.answers, self._left = self.answers + 1, len(ANSWER)
            self.transport.write(QUESTION)


async def keep_asking(address: str, port: int, connections: int, seconds: float) -> float:
    """Return the requests a second over connections that stay open."""
    loop = asyncio.get_running_loop()
    made = [(await loop.create_connection(Asks, address, port))[1] for _ in range(connections)]
    before, begun = sum(each.answers for each in made), time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (sum(each.answers for each in made) - before) / (time.perf_counter() - begun)
    for each in made:
        each.transport.abort()
    return rate


async def keep_connecting(address: str, port: int, workers: int, seconds: float) -> float:
    """Return the connections a second, with one request each."""
    loop, until, count = asyncio.get_running_loop(), time.perf_counter() + seconds, 0

    async def connect() -> None:
        nonlocal count
        while time.perf_counter() < until:
            transport, asks = await loop.create_connection(Asks, address, port)
            while not asks.answers and not transport.is_closing():
                await asyncio.sleep(0)
            transport.abort()
            count += 1

    begun = time.perf_counter()
    await asyncio.gather(*(connect() for _ in range(workers)))
    return count / (time.perf_counter() - begun)


async def measure_paths(rounds: int, seconds: float) -> dict[str, Any]:
    """Requests and connections a second: direct, through nftables, through the relay."""
    port = 18080
    with endpoint(port), tempfile.TemporaryDirectory(prefix="mandor-bench-") as folder:
        endpoints = [Endpoint(ENDPOINT, port)]
        relay = RelayBalancer(Path(folder) / "relay")
        nftables = NftablesBalancer("bench", [RANGE])
        balancers: list[tuple[str, Balancer, str]] = [
            ("nftables", nftables, "10.93.0.70"),
            ("relay", relay, "127.93.0.70"),
        ]
        try:
            for _, balancer, address in balancers:
                await balancer.apply([frontend(70, endpoints, address=address)])
            places = {"direct": (ENDPOINT, port), **{name: (address, 80) for name, _, address in balancers}}
            found: dict[str, Any] = {}
            loads: dict[str, Callable[..., Awaitable[float]]] = {
                "requests": keep_asking,
                "connections": keep_connecting,
            }
            for load, run in loads.items():
                rates: dict[str, list[float]] = {name: [] for name in places}
                for _ in range(rounds):
                    for name, place in places.items():
                        rates[name].append(await run(*place, 32, seconds))
                for name, each in rates.items():
                    found[f"{name}_{load}_per_second"] = round(statistics.median(each))
                for name in ("nftables", "relay"):
                    pairs = zip(rates[name], rates["direct"], strict=True)
                    found[f"{name}_{load}_share"] = round(statistics.median(mine / direct for mine, direct in pairs), 3)
        finally:
            for _, balancer, _ in balancers:
                await balancer.remove()
    return {**found, "within_bound": found["nftables_requests_share"] >= NFTABLES_SHARE_LEAST}


class Arrivals(Reader):
    """The watch of one node; records when the newest change arrived."""

    at = 0.0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.at = time.perf_counter()


async def measure_arrivals(target: Server, nodes: int, changes: int) -> dict[str, Any]:
    """Time from the commit of a change of an instance until the watch of each node has received it."""
    loop, path = asyncio.get_running_loop(), "/v1/watch?kind=instance,service&namespace=default"
    readers = [Arrivals(request("GET", path, target.host, target.tokens["component"])) for _ in range(nodes)]
    for start in range(0, nodes, 200):
        for each in readers[start : start + 200]:
            await loop.create_connection(lambda each=each: each, target.host, target.port)  # type: ignore[misc]
        async with asyncio.timeout(120):
            while not all(each.lines or each.refused for each in readers[start : start + 200]):
                await asyncio.sleep(0.01)
    refused = next((each.refused for each in readers if each.refused), b"")
    assert not refused, refused
    last = []
    async with RemoteStore(Client([target.url], token=target.tokens["component"])) as store:
        for number in range(changes):
            wanted = [each.lines + 1 for each in readers]
            begun = time.perf_counter()
            await store.commit(Put(make_instance(f"i-{number}")))
            async with asyncio.timeout(60):
                while any(each.lines < count for each, count in zip(readers, wanted, strict=True)):
                    await asyncio.sleep(0.001)
            last.append((max(each.at for each in readers) - begun) * 1000)
    for each in readers:
        assert each.transport is not None
        each.transport.abort()
    last.sort()
    p99 = last[min(len(last) - 1, int(len(last) * 0.99))]
    return {
        "nodes": nodes,
        "changes": changes,
        "last_node_ms_median": round(statistics.median(last), 1),
        "last_node_ms_p99": round(p99, 1),
        "within_bound": p99 <= RECEIVED_MS_MOST,
    }


async def main(options: argparse.Namespace) -> int:
    if options.serve:
        await serve(options.serve)
        return 0
    result = {
        "one_change": await measure_changes(options.services, options.changes),
        "paths": await measure_paths(options.rounds, options.seconds),
    }
    with server() as target:
        result["arrival"] = await measure_arrivals(target, options.nodes, options.changes)
    report("network", result, options.json)
    return 0 if all(each["within_bound"] for each in result.values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=5000)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round of load")
    parser.add_argument("--serve", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--json", help="where to keep the result")
    chosen = parser.parse_args()
    allow_files()
    if not chosen.serve:
        os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        enter_own_network()
    sys.exit(uvloop.run(main(chosen)))
