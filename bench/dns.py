"""Queries per second of the name server and of dnsmasq on one core, in the same run.

python bench/dns.py [--json FILE] [--seconds N] [--rounds N]

Both servers know the same 1,000 names. The server under test runs on one CPU core; a client on another one keeps a
window of queries open. The servers take turns, and the best round of each is kept: other work on the machine only
slows a round down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from bench.machine import machine  # noqa: E402
from mandor.network.base import NameRecord, NameTable  # noqa: E402
from mandor.network.dns.message import A, make_query, to_wire  # noqa: E402
from mandor.network.dns.names import NameServerProcess  # noqa: E402
from scripts.components import environment, find  # noqa: E402

NAMES = 1_000
WINDOW = 64  # queries that are open at a time
WANTED_PER_SECOND, WANTED_RATIO = 50_000, 1.5
ZONE = "default.mandor"


def address(number: int) -> str:
    return f"10.93.{number // 250}.{number % 250 + 1}"


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


@asynccontextmanager
async def ours(folder: Path) -> AsyncIterator[tuple[int, list[int]]]:
    """Start the name server; yields its port and process ids."""
    server = NameServerProcess(folder / "dns", ["127.0.0.1"], port=free_port(), add=False)
    try:
        await server.open()
        await server.apply(NameTable({f"s{number}.default": NameRecord((address(number),)) for number in range(NAMES)}))
        found = [
            each.pid for each in psutil.process_iter(["cmdline"]) if str(folder / "dns") in (each.info["cmdline"] or ())
        ]
        yield server.port, found
    finally:
        await server.remove()


@asynccontextmanager
async def dnsmasq(folder: Path) -> AsyncIterator[tuple[int, list[int]]]:
    """Start dnsmasq; yields its port and process ids."""
    port, hosts = free_port(), folder / "hosts"
    hosts.write_text("".join(f"{address(number)} s{number}.{ZONE}\n" for number in range(NAMES)))
    words = [str(find("dnsmasq")), "--keep-in-foreground", f"--port={port}", "--listen-address=127.0.0.1"]
    words += ["--bind-interfaces", "--no-hosts", f"--addn-hosts={hosts}", "--no-resolv", "--user=root", "--pid-file="]
    words += ["--conf-file=/dev/null", "--local-ttl=1"]
    running = subprocess.Popen(words, env=os.environ | environment("dnsmasq"))
    try:
        yield port, [running.pid]
    finally:
        running.terminate()
        running.wait()


def ask(port: int, seconds: float) -> tuple[int, float]:
    """Keep a window of queries open; return the number of answers and the seconds that it took."""
    chosen = random.Random(7)
    names = [f"s{chosen.randrange(NAMES)}.{ZONE}" for _ in range(4_096)]
    queries = [make_query(to_wire(name), A) for name in names]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect(("127.0.0.1", port))
        line.settimeout(5)
        messages = [number.to_bytes(2, "big") + query for number, query in enumerate(queries)]
        for message in messages:  # every name once: both servers are warm, and have the right answer
            line.send(message)
            answer = line.recv(512)
            assert (answer[:2], answer[3] & 0xF, answer[7]) == (message[:2], 0, 1), answer
        done, place = 0, 0
        for _ in range(WINDOW):
            line.send(messages[place])
            place += 1
        began = time.perf_counter()
        ends = began + seconds
        receive, send, count = line.recv, line.send, len(messages)
        while time.perf_counter() < ends:
            for _ in range(256):
                receive(512)
                send(messages[place % count])
                place += 1
            done += 256
        return done, time.perf_counter() - began


async def measure(kind: str, seconds: float) -> dict[str, float]:
    """Return queries per second of one round, and per second of CPU time of the server."""
    with tempfile.TemporaryDirectory() as folder:
        opened = ours(Path(folder)) if kind == "mandor" else dnsmasq(Path(folder))
        async with opened as (port, pids):
            cores = sorted(os.sched_getaffinity(0))
            for pid in pids:
                os.sched_setaffinity(pid, {cores[0]})
            os.sched_setaffinity(0, {cores[-1]})
            try:
                await asyncio.sleep(0.5)
                before = cpu_seconds(pids)
                done, took = await asyncio.to_thread(ask, port, seconds)
                used = cpu_seconds(pids) - before
            finally:
                os.sched_setaffinity(0, set(cores))
    return {"queries_per_second": done / took, "queries_per_cpu_second": (done + 4_096) / used}


def cpu_seconds(pids: list[int]) -> float:
    found = (psutil.Process(pid).cpu_times() for pid in pids)
    return sum(each.user + each.system for each in found)


async def run(seconds: float, rounds: int) -> dict[str, object]:
    best: dict[str, dict[str, float]] = {"mandor": {}, "dnsmasq": {}}
    for _ in range(rounds):
        for kind, figures in best.items():
            for name, value in (await measure(kind, seconds)).items():
                figures[name] = max(figures.get(name, 0.0), round(value))
    name = "queries_per_cpu_second"
    ratio = best["dnsmasq"][name] / best["mandor"][name]
    return {
        "machine": machine(),
        "names": NAMES,
        "window": WINDOW,
        "rounds": rounds,
        **best,
        "dnsmasq_to_mandor": round(ratio, 2),
        "wanted": {name: f">= {WANTED_PER_SECOND}", "dnsmasq_to_mandor": f"<= {WANTED_RATIO}"},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    found = json.dumps(asyncio.run(run(asked.seconds, asked.rounds)), indent=2)
    print(found)
    if asked.json:
        asked.json.write_text(found + "\n")


if __name__ == "__main__":
    main()
