"""A server with 5,000 agents that beat every ten seconds over real HTTP: its CPU, and the longest hold of its loop.

Bounds: less than half a core; nothing holds the event loop longer than 20 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from bench._api import Server, report, request, server
from mandor.client.aio import Client

CORES_MOST = 0.5
HOLD_MS_MOST = 20.0


class Beating(asyncio.Protocol):
    """One agent: a connection that stays, and a beat every so often, never at the same moment as the others."""

    def __init__(self, beat: bytes, every_seconds: float) -> None:
        self._beat = beat
        self._every = every_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._got = b""
        self.beats = 0
        self.wrong = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._later(random.random() * self._every)

    def _later(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._send)

    def _send(self) -> None:
        assert self._transport is not None
        self._transport.write(self._beat)

    def data_received(self, data: bytes) -> None:
        # Head and body may come apart.
        self._got += data
        if b'"id":"bench"' not in data:
            if not self._got.startswith(b"HTTP/1.1 200"):
                self.wrong = self._got
            return
        self._got = b""
        self.beats += 1
        self._later(self._every * random.uniform(0.9, 1.1))

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


def beat_body(cluster: str, instances: Iterable[str]) -> bytes:
    """A heartbeat, with what the node and each of its instances use."""
    usage = {"cpu_milli": 1500, "memory_bytes": 2**33, "disk_bytes": 2**38, "network_in_bytes": 12_345}
    each = {name: {"cpu_milli": 12, "memory_bytes": 2**26} for name in instances}
    return json.dumps({"cluster": cluster, "usage": usage, "instances": each}).encode()


async def join(target: Server, count: int) -> list[str]:
    """Each node's own credential."""
    async with Client([target.url], token=target.tokens["join"]) as client:
        found: list[str] = []
        for start in range(0, count, 100):
            numbers = range(start, min(start + 100, count))
            joined = await asyncio.gather(
                *[client.call("POST", f"/v1/nodes/n{number}/join", dict, body={}) for number in numbers]
            )
            found += [each["credential"] for each in joined]
        return found


async def connect(target: Server, credentials: list[str], every_seconds: float) -> list[Beating]:
    loop = asyncio.get_running_loop()
    body = beat_body("bench", [f"default/web-{number}" for number in range(20)])
    agents: list[Beating] = []
    for number, credential in enumerate(credentials):
        beat = request("POST", f"/v1/nodes/n{number}/heartbeat", target.host, credential, body)
        agent = Beating(beat, every_seconds)
        await loop.create_connection(lambda agent=agent: agent, target.host, target.port)  # type: ignore[misc]
        agents.append(agent)
    return agents


async def measure(target: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Return the resources that the server used while agents sent heartbeats."""
    credentials = await join(target, options.agents)
    agents = await connect(target, credentials, options.every)
    # The first round fills the table and writes the first summaries.
    await asyncio.sleep(options.every * 1.2)
    beats = sum(agent.beats for agent in agents)
    before, began = target.usage(), time.monotonic()
    await asyncio.sleep(options.seconds)
    after, passed = target.usage(), time.monotonic() - began
    beats = sum(agent.beats for agent in agents) - beats
    wrong = [agent.wrong for agent in agents if agent.wrong]
    assert not wrong, wrong[0]
    for agent in agents:
        agent.close()
    cpu = after["cpu_seconds"] - before["cpu_seconds"]
    return after | {"beats_a_second": beats / passed, "cores": cpu / passed, "cpu_us_a_beat": cpu / beats * 1e6}


async def main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder, server(f"sqlite:{folder}/state.db") as target:
        used = await measure(target, options)
    with tempfile.TemporaryDirectory() as folder, server(f"sqlite:{folder}/state.db", trace=True) as target:
        held = await measure(target, options)
    result = {
        "agents": options.agents,
        "beats_a_second": round(used["beats_a_second"], 1),
        "cores": round(used["cores"], 3),
        "cpu_us_a_beat": round(used["cpu_us_a_beat"], 1),
        "memory_mib": round(used["memory_bytes"] / 2**20, 1),
        "longest_hold_ms": round(held["holds"][0][0], 1),
        "longest_holds": [f"{spent:.1f} ms {what}" for spent, what in held["holds"]],
        "longest_hold_ms_others_included": round(held["hold_wall_ms"], 1),
        "within_bound": used["cores"] < CORES_MOST and held["holds"][0][0] <= HOLD_MS_MOST,
    }
    report("heartbeats", result, options.json)
    return 0 if result["within_bound"] else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=5000)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two beats of an agent")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to measure")
    parser.add_argument("--json", help="where to keep the result")
    sys.exit(uvloop.run(main(parser.parse_args())))
