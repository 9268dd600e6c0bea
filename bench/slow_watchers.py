"""Memory of a server with 10,000 watchers that read nothing, over real HTTP, while changes go on.

Bounds: what the server needs more is below 1 GiB, however many changes there are; somebody who reads gets every one.
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from typing import cast

import uvloop
from _api import Reader, Server, report, request, server

from mandor.client.aio import Client
from mandor.store.base import Put
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance

MEMORY_BYTES_MOST = 2**30
TOGETHER = 100


class Sleeper(Reader):
    """Reads the first bookmark, and nothing after it."""

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.lines and self.transport is not None:
            self.transport.pause_reading()


async def connect(target: Server, count: int) -> list[Sleeper]:
    loop = asyncio.get_running_loop()
    sleepers: list[Sleeper] = []
    asked = request("GET", "/v1/watch?kind=instance", target.host, target.tokens["component"])
    for start in range(0, count, 200):
        part = [Sleeper(asked) for _ in range(min(200, count - start))]
        for each in part:
            plain = socket.socket()
            # Else this side would take in megabytes that nobody asked it for.
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.setblocking(False)
            await loop.sock_connect(plain, (target.host, target.port))
            await loop.create_connection(lambda each=each: each, sock=plain)  # type: ignore[misc]
        sleepers += part
        async with asyncio.timeout(120):
            while not all(each.lines or each.refused for each in part):
                await asyncio.sleep(0.01)
    refused = next((each.refused for each in sleepers if each.refused), b"")
    assert not refused, refused
    return sleepers


async def main(options: argparse.Namespace) -> int:
    with server() as target:
        sleepers = await connect(target, options.watchers)
        opened = target.usage()
        async with RemoteStore(Client([target.url], token=target.tokens["component"], timeout_seconds=300)) as store:
            reader = Reader(request("GET", "/v1/watch?kind=instance", target.host, target.tokens["component"]))
            await asyncio.get_running_loop().create_connection(lambda: reader, target.host, target.port)
            while not reader.lines:
                await asyncio.sleep(0.01)
            most, curve = 0, []
            for turn in range(0, options.events, TOGETHER):
                await store.commit(*[Put(make_instance(f"i-{turn + number}")) for number in range(TOGETHER)])
                async with asyncio.timeout(300):
                    while reader.lines < turn + TOGETHER + 1:
                        await asyncio.sleep(0.01)
                used = target.usage()
                most = max(most, used["memory_bytes"])
                curve.append(round(used["memory_bytes"] / 2**20))
        for each in sleepers:
            cast("asyncio.Transport", each.transport).abort()
    grown = most - opened["memory_bytes"]
    result = {
        "watchers": options.watchers,
        "events": options.events,
        "memory_mib_opened": round(opened["memory_bytes"] / 2**20, 1),
        "memory_mib_most": round(most / 2**20, 1),
        "kib_a_watcher": round(grown / options.watchers / 1024, 1),
        "cpu_seconds": round(used["cpu_seconds"] - opened["cpu_seconds"], 1),
        "memory_mib_by_commit": curve,
        "within_bound": grown < MEMORY_BYTES_MOST,
    }
    report("slow_watchers", result, options.json)
    return 0 if result["within_bound"] else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--watchers", type=int, default=10_000)
    parser.add_argument("--events", type=int, default=3_000)
    parser.add_argument("--json", help="where to keep the result")
    sys.exit(uvloop.run(main(parser.parse_args())))
