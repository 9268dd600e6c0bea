"""A whole server and up to 5,000 simulated agents over real HTTP: what binding, acknowledging and beating cost.

python bench/scale.py [--store sqlite --store etcd] [--agents 100 --agents 1000 --agents 5000] [--each 10]
                      [--rounds 2] [--seconds 15] [--profile NAME] [--trace] [--json FILE]

Rounds of so many instances for each agent; the agents acknowledge each and report it running. Then the server is
started again on what it has stored. `make scale` runs all of it and keeps the results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import psutil
import uvloop

from bench._agents import Agent, Tally, start_agents
from bench._api import Server, allow_files, keep, started
from bench.end_to_end import manifest
from mandor.bench.home import CpuSeconds, free_port, nobody, private_etcd
from mandor.bench.meter import percentiles
from mandor.client.aio import Client
from mandor.errors import Invalid

WORKLOADS = 10
"""Workloads that the instances of a round belong to."""
ROUND_SECONDS = 900.0
TICK_SECONDS = 0.01


def own_cpu() -> float:
    return time.process_time()


def size_of(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


@contextmanager
def home(name: str, folder: Path) -> Iterator[tuple[str, Path, CpuSeconds]]:
    """The store's URL, where it keeps its files, and what it uses besides."""
    kept = folder / "store"
    kept.mkdir()
    if name == "etcd":
        with private_etcd(kept) as (address, cpu):
            yield f"etcd://{address}/mandor", kept, cpu
    else:
        yield f"sqlite:{kept}/state.db", kept, nobody


class Stretch:
    """Resources that the server, its store and this process have used since the start."""

    def __init__(self, target: Server, others: CpuSeconds, profile: str = "") -> None:
        self._target, self._others, self._profile = target, others, profile
        self._process = psutil.Process(target.process.pid)
        self._seen: list[tuple[float, float]] = []
        self._before = target.usage(profile)
        self._at, self._mine, self._store = time.monotonic(), own_cpu(), others()

    def look(self) -> None:
        """Return the resources of the server process as the system counts them, without a request to the server."""
        times = self._process.cpu_times()
        self._seen.append((time.time(), times.user + times.system - self._before["cpu_seconds"]))

    def cpu_until(self, wall: float) -> float:
        """Return the last measurement, at least one unit of the system's clock."""
        return max((cpu for at, cpu in self._seen if at <= wall and cpu > TICK_SECONDS), default=TICK_SECONDS)

    def turn(self, profile: str) -> dict[str, Any]:
        """Start the next part with its own profile; return the delay of the event loop so far."""
        late: dict[str, Any] = self._target.usage(self._profile)["loop_late_ms"]
        self._profile = profile
        if profile:
            self._target.usage(profile)
        return late

    def end(self) -> dict[str, Any]:
        after = self._target.usage(self._profile)
        cpu = after["cpu_seconds"] - self._before["cpu_seconds"]
        found = {
            "seconds": round(time.monotonic() - self._at, 2),
            "server_cpu_seconds": round(cpu, 2),
            "server_cores": round(cpu / (time.monotonic() - self._at), 3),
            "store_cpu_seconds": round(self._others() - self._store, 2),
            "load_cpu_seconds": round(own_cpu() - self._mine, 2),
            "server_memory_mib": round(after["memory_bytes"] / 2**20, 1),
            "loop_late_ms": after["loop_late_ms"],
        }
        if after["holds"][0][1]:
            found["longest_holds"] = [f"{spent:.1f} ms {what}" for spent, what in after["holds"]]
        return found


async def rest(target: Server, others: CpuSeconds, tally: Tally, seconds: float, profile: str = "") -> dict[str, Any]:
    """Nothing but heartbeats, and the bookmarks of the streams."""
    stretch = Stretch(target, others, profile)
    tally.reset()
    await asyncio.sleep(seconds)
    found = stretch.end()
    rate = len(tally.beat_seconds) / found["seconds"]
    return found | {"beats_a_second": round(rate, 1), "beat_ms": milliseconds(tally.beat_seconds)}


async def look(agents: list[Agent]) -> None:
    """Some time passes; an agent that failed is the end of it all."""
    await asyncio.sleep(0.05)
    for each in agents:
        each.check()


def milliseconds(found: list[float]) -> dict[str, float]:
    return percentiles(sorted(each * 1000 for each in found), 1)


TERMS = "/v1/objects?key=lease//term-scheduler&key=lease//term-controllers"


async def leaders(client: Client) -> int:
    """Number of leader changes of the scheduler and the controllers."""
    found = json.loads(await client.request("GET", TERMS))
    return sum(each["spec"]["renewals"] for each in found["items"])


async def submit(
    target: Server,
    others: CpuSeconds,
    agents: list[Agent],
    tally: Tally,
    turn: int,
    profile: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Add instances and wait until the last one is reported as running."""
    count = len(agents) * options.each
    tally.reset()
    stretch = Stretch(target, others, profile and f"{profile}_binding.txt")
    texts = [json.dumps(manifest(f"round{turn}-{index}", count // WORKLOADS, "fake")) for index in range(WORKLOADS)]
    async with Client([target.url], token=target.tokens["admin"]) as client:
        led = await leaders(client)
        begun, wall = time.monotonic(), time.time()
        body = "\n---\n".join(texts).encode()
        await client.request("POST", "/v1/apply", body=body, content_type="application/yaml")
    wanted = count // WORKLOADS * WORKLOADS
    async with asyncio.timeout(ROUND_SECONDS):
        while len(tally.seen) < wanted:
            stretch.look()
            await look(agents)
        while_binding = stretch.turn(profile and f"{profile}_acknowledging.txt")
        while tally.running < wanted:
            await look(agents)
    async with Client([target.url], token=target.tokens["admin"]) as client:
        changes = await leaders(client) - led
    bound, known = max(tally.bound_at) - wall, max(tally.acknowledged) - begun
    since = min(tally.seen)
    found = {
        "instances": wanted,
        "bound_a_second": round(wanted / bound),
        "bound_a_server_cpu_second": round(wanted / stretch.cpu_until(max(tally.bound_at))),
        "acknowledged_a_second": round(wanted / (max(tally.acknowledged) - since)),
        "running_after_seconds": round(time.monotonic() - begun, 2),
        "acknowledged_after_seconds": round(known, 2),
        "submit_to_bound_ms": milliseconds([at - wall for at in tally.bound_at]),
        "submit_to_node_ms": milliseconds([at - begun for at in tally.seen]),
        "node_to_acknowledged_ms": milliseconds(tally.wait_seconds),
        "acknowledgements_waiting_most": tally.backlog_most,
        "loop_late_while_binding_ms": while_binding,
        "conflicts": tally.conflicts,
        "put_off": tally.put_off,
        "leader_changes": changes,
        "requests_an_instance": round(tally.requests / wanted, 3),
        "beats": len(tally.beat_seconds),
        "beat_ms": milliseconds(tally.beat_seconds),
    }
    found |= stretch.end()
    return found | {"server_cpu_ms_an_instance": round(found["server_cpu_seconds"] * 1000 / wanted, 3)}


async def measure(store: str, count: int, options: argparse.Namespace, profile: str = "") -> dict[str, Any]:
    """`profile`: where the time goes is written to files that begin so: at rest, and in the first round."""
    tally = Tally()
    agents: list[Agent] = []
    with TemporaryDirectory(prefix="mandor-scale-") as name, home(store, Path(name)) as (url, kept, others):
        words = ("--data", f"{name}/data", "--listen", f"127.0.0.1:{free_port()}", "--store", url)
        with started("_whole.py", *words, *(["--trace"] if options.trace else [])) as target:
            begin = Stretch(target, others)
            agents = await start_agents(target, count, tally, options.every)
            found: dict[str, Any] = {"store": store, "agents": count, "load": os.getloadavg()[0], "start": begin.end()}
            found["rest"] = await rest(target, others, tally, options.seconds, profile and f"{profile}_rest.txt")
            for turn in range(1, options.rounds + 1):
                looked = profile if turn == 1 else ""
                found[f"round_{turn}"] = await submit(target, others, agents, tally, turn, looked, options)
            found["rest_full"] = await rest(target, others, tally, options.seconds)
            found["store_mib"] = round(size_of(kept) / 2**20, 1)
            await asyncio.gather(*(each.stop() for each in agents))
        begun = time.monotonic()
        with started("_whole.py", *words) as target:
            ready = time.monotonic() - begun
            used = target.usage()
            found["restart"] = {"ready_seconds": round(ready, 2), "cpu_seconds": round(used["cpu_seconds"], 2)}
    return found


async def main(options: argparse.Namespace) -> int:
    allow_files()
    found: list[dict[str, Any]] = []
    options.agents = options.agents or [100, 1000, 5000]
    for store in options.store or ["sqlite", "etcd"]:
        for count in options.agents:
            try:
                found.append(await measure(store, count, options))
            except Invalid as error:
                print(f"{store} is left out: {error}", file=sys.stderr)
                break
            print(json.dumps(found[-1]), file=sys.stderr, flush=True)
            keep("scale", {"cases": found}, options.json)
        else:
            if options.profile:
                # Once more: to look at it takes time of its own, and that is not to be in the figures.
                await measure(store, max(options.agents), options, f"{options.profile}_{store}")
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", choices=["sqlite", "etcd"], action="append")
    parser.add_argument("--agents", type=int, action="append")
    parser.add_argument("--each", type=int, default=10, help="instances for each agent, in each round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two beats of an agent")
    parser.add_argument("--seconds", type=float, default=15.0, help="how long to look at an idle cluster")
    parser.add_argument(
        "--profile", default="", help="write where the server's time goes with the most agents, in files that begin so"
    )
    parser.add_argument("--trace", action="store_true", help="tell who held the event loop longest, on asyncio's own")
    parser.add_argument("--json", help="keep the results here, with the machine")
    sys.exit(uvloop.run(main(parser.parse_args())))
