"""The API server of a bench, in a process of its own: tells what it uses when it is asked on stdin."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import uvloop

from bench._api import allow_files
from bench._sampler import Sampler
from mandor.api.app import build_app
from mandor.api.auth import make_token
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.server import ApiServer, open_socket
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.lib.clock import SystemClock
from mandor.lib.garbage import collect_gently
from mandor.model.meta import Meta
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Put
from mandor.store.open import open_store

LONGEST = 5
HOLD_SECONDS = 0.005
"""Seconds between measurements of the event loop's delay."""
SHOWN = 25
"""Lines in each part of a profile."""


class Holds:
    """The longest that one callback held the event loop: what it computed, and how long it took on a busy machine."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.wall_ms = 0.0
        self.longest: list[tuple[float, str]] = [(0.0, "")]
        """CPU and who it was, the longest first."""

    def trace(self) -> None:
        """Time every callback of asyncio's own loop; uvloop does not let anybody look."""
        plain = asyncio.Handle._run  # type: ignore[attr-defined]

        def timed(handle: asyncio.Handle) -> None:
            wall, cpu = time.monotonic(), time.thread_time()
            plain(handle)
            self.wall_ms = max(self.wall_ms, (time.monotonic() - wall) * 1000)
            spent = (time.thread_time() - cpu) * 1000
            if spent > self.longest[-1][0]:
                callback = handle._callback  # type: ignore[attr-defined]
                entry = (spent, _name(getattr(callback, "__self__", callback)))
                self.longest = sorted([*self.longest, entry], reverse=True)[:LONGEST]

        asyncio.Handle._run = timed  # type: ignore[attr-defined]


def _name(owner: object) -> str:
    """Return the running task and its coroutine, or the class of the method."""
    if not isinstance(owner, asyncio.Task):
        return type(owner).__name__
    return f"{owner.get_name()}: {getattr(owner.get_coro(), '__qualname__', '')}"


HOLDS = Holds()


async def lateness(found: list[float]) -> None:
    """How much later than asked for this is woken: what others held the loop for."""
    while True:
        begun = time.monotonic()
        await asyncio.sleep(HOLD_SECONDS)
        found.append((time.monotonic() - begun - HOLD_SECONDS) * 1000)


async def answer_questions(more: Callable[[], dict[str, Any]]) -> None:
    """What this process uses, a line of JSON for each line on stdin, until that ends; a line that names a file begins a
    profile, and the next one ends it."""
    process = psutil.Process()
    sampler: Sampler | None = None
    while asked := await asyncio.to_thread(sys.stdin.readline):
        if path := asked.strip():
            if sampler is None:
                sampler = Sampler()
                sampler.start()
            else:
                sampler.stop()
                with Path(path).open("w") as out:
                    sampler.show(out, most=SHOWN)
                sampler = None
        times = process.cpu_times()
        told = {
            "cpu_seconds": times.user + times.system,
            "memory_bytes": process.memory_info().rss,
            "hold_wall_ms": HOLDS.wall_ms,
            "holds": HOLDS.longest,
            **more(),
        }
        HOLDS.reset()
        print(json.dumps(told), flush=True)


async def main(store_url: str) -> None:
    allow_files()
    clock = SystemClock()
    listener = open_socket("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with await open_store(store_url) as store:
        await store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("bench"))))
        tokens = {}
        for role, identity in (("component", "component:bench"), ("join", "join:bench"), ("viewer", "user:bench")):
            token, tokens[role] = make_token(role, identity)  # type: ignore[arg-type]
            await store.commit(Put(token))
        heartbeats = Heartbeats(store, clock, "bench", url)
        parts = ApiParts(store, clock, heartbeats, ApiSettings(address=url, watches_each=20_000))
        server = ApiServer(build_app(parts), parts, listener)
        work = (server.serve(), heartbeats.run(), collect_gently(clock))
        tasks = [asyncio.create_task(each) for each in work]
        await server.listening()
        print(json.dumps({"url": url, "tokens": tokens}), flush=True)
        await answer_questions(lambda: {"streams": len(parts.streams)})
        server.stop()
        await tasks[0]
        for task in tasks[1:]:
            task.cancel()
        await asyncio.gather(*tasks[1:], return_exceptions=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", default="memory:")
    parser.add_argument("--trace", action="store_true", help="time every callback, on asyncio's own loop")
    options = parser.parse_args()
    if options.trace:
        HOLDS.trace()
        asyncio.run(main(options.store))
    else:
        uvloop.run(main(options.store))
