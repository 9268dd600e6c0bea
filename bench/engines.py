"""How much mandor adds to an engine: one start beside the engine's own, many at once, and an agent at rest.

Needs root: it starts each engine, a server and an agent of its own. What is compared is told the same and measured in
turns in one run: the engine's own command, its API as fast as it goes, and mandor from submit to Running.

python bench/engines.py --json bench/results/engines.json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from _rigs import RIGS, Rig
from machine import machine

from tests.e2e.cluster import Cluster, eventually

AT_ONCE = (4, 8, 16)
LOOK_SECONDS = 0.004
PATIENCE = 900.0


class Bench:
    """A server and an agent that has one engine."""

    def __init__(self, cluster: Cluster, rig: Rig, runner: asyncio.Runner) -> None:
        self.cluster, self.rig, self.runner = cluster, rig, runner
        cluster.start_server()
        cluster.start_agent(
            "n1",
            engines=(rig.name,),
            environ={"MANDOR_HEARTBEAT": "10s"},
            options=("--engine-option", rig.setting, "--capacity", "cpu=1000", "--capacity", "memory=1000Gi"),
        )
        cluster.wait_nodes("n1")

    def run(self, name: str, count: int, *, pause: float = LOOK_SECONDS) -> float:
        """Seconds from submit until the control plane shows all of them running."""
        begun = time.monotonic()
        self.cluster.apply(self.rig.manifest(name, count))
        while len(self.cluster.instances(name, phase="Running")) < count:
            assert time.monotonic() - begun < PATIENCE, f"{name} does not run"
            time.sleep(pause)
        return time.monotonic() - begun

    def run_own(self, count: int, at_once: int) -> float:
        """The same, with the engine alone."""
        return self.runner.run(self.rig.by_api(count, at_once))

    def clear(self, name: str) -> None:
        self.cluster.call("DELETE", f"/v1/workloads/{name}")
        eventually(f"{name} is gone", lambda: not self.cluster.instances(name), patience=PATIENCE)

    def spending(self, work: Callable[[], float]) -> tuple[float, dict[str, float]]:
        """(what it answers, the processor's seconds that went into it)."""
        before = {name: _used(pid) for name, pid in self._processes().items()}
        taken = work()
        return taken, {name: round(_used(pid) - before[name], 2) for name, pid in self._processes().items()}

    def _processes(self) -> dict[str, int]:
        programs = {"server": self.cluster.servers[0], "agent": self.cluster.agents["n1"]}
        found = {name: program.process.pid for name, program in programs.items() if program.process is not None}
        assert self.rig.daemon.process is not None
        return found | {"engine": self.rig.daemon.process.pid}

    def agent(self) -> psutil.Process:
        return psutil.Process(self._processes()["agent"])


def _used(pid: int) -> float:
    """Return the CPU time of a process with its running children; ended children are counted by their parent."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)


def one_by_one(bench: Bench, rounds: int) -> dict[str, float]:
    """Medians, in milliseconds."""
    taken: dict[str, list[float]] = {"command": [], "api": [], "mandor": []}
    for number in range(rounds):
        own = bench.rig.by_command()
        taken["command"] += [] if own is None else [own]
        taken["api"].append(bench.run_own(1, 1))
        taken["mandor"].append(bench.run(f"one{number}", 1))
        bench.clear(f"one{number}")
    found = {f"{name}_ms": round(1000 * statistics.median(each)) for name, each in taken.items() if each}
    return found | {"added_ms": found["mandor_ms"] - found.get("command_ms", found["api_ms"])}


def many(bench: Bench, count: int, turns: int) -> dict[str, Any]:
    """In turns; the engine alone goes at whatever pace suits it best, with mandor at mandor's own."""
    probes = {at_once: bench.run_own(max(at_once, count // 4), at_once) for at_once in AT_ONCE}
    best = min(probes, key=lambda each: probes[each] / max(each, count // 4))
    own, mandor, load = [], [], []
    spent: dict[str, float] = {}
    for number in range(turns):
        own.append(round(bench.run_own(count, best), 2))
        taken, spent = bench.spending(lambda name=f"many{number}": bench.run(name, count, pause=0.1))
        mandor.append(round(taken, 2))
        load.append(round(os.getloadavg()[0], 1))
        bench.clear(f"many{number}")
    return {
        "count": count,
        "engine_at_once": best,
        "engine_s": own,
        "mandor_s": mandor,
        "ratio": round(statistics.median(mandor) / statistics.median(own), 2),
        "load": load,
        "processor_s": spent,
    }


def at_rest(bench: Bench, count: int, seconds: float) -> dict[str, float]:
    """The agent with so many that run and do nothing."""
    bench.run("rest", count, pause=0.5)
    time.sleep(min(10.0, seconds))  # What came with the starts is over.
    process = bench.agent()
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    found = {
        "running": count,
        "agent_cpu_percent": round(100 * used / seconds, 1),
        "agent_rss_mib": round(process.memory_info().rss / 2**20),
    }
    bench.clear("rest")
    return found


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="mb-", ignore_cleanup_errors=True) as folder, asyncio.Runner() as runner:
        Path(folder).chmod(0o711)  # The users of containers go through it.
        rig = RIGS[name](Path(folder, name))
        try:
            with Cluster(Path(folder, "cluster")) as cluster:
                bench = Bench(cluster, rig, runner)
                found: dict[str, Any] = {"one": one_by_one(bench, options.rounds)}
                if name in options.many:
                    found["many"] = many(bench, options.count, options.turns)
                if name in options.rest:
                    found["rest"] = at_rest(bench, options.running, options.seconds)
            runner.run(rig.close())
        finally:
            rig.daemon.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engine", nargs="+", choices=sorted(RIGS), default=list(RIGS), help="which ones")
    parser.add_argument("--many", nargs="*", default=["docker", "cri"], help="for which of them many at once")
    parser.add_argument("--rest", nargs="*", default=["docker"], help="for which of them the agent at rest")
    parser.add_argument("--rounds", type=int, default=10, help="single starts")
    parser.add_argument("--count", type=int, default=100, help="so many at once")
    parser.add_argument("--turns", type=int, default=3, help="each, many at once")
    parser.add_argument("--running", type=int, default=200, help="so many, at rest")
    parser.add_argument("--seconds", type=float, default=30.0, help="so long, at rest")
    options = parser.parse_args()
    result = {}
    for name in options.engine:
        result[name] = measure(name, options)
        print(json.dumps({name: result[name]}, indent=2), flush=True)
    if options.json:
        document = {"bench": "engines", "machine": machine(), "result": result}
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
