"""How much mandor adds to an engine: submit to running beside `docker run`, many at once, and an agent at rest.

Needs root: it starts a dockerd, a server and an agent of its own. What is compared is measured in turns in one run.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from machine import machine

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.components import find, missing
from tests.components.docker import Docker, start_docker
from tests.components.image import NAME, busybox_image
from tests.e2e.cluster import Cluster, eventually

SLEEP = ["sleep", "100000"]
MANIFEST = "name: {name}\nreplicas: {count}\nimage: {image}\ncommand: [sleep, '100000']\nstop: {{grace: 0s}}\n"
AT_ONCE = 16
PATIENCE = 600.0


def by_hand(docker: Docker, name: str) -> float:
    begun = time.monotonic()
    docker.cli("run", "--detach", "--name", name, NAME, *SLEEP)
    return time.monotonic() - begun


def by_mandor(cluster: Cluster, docker: Docker, name: str, count: int = 1) -> float:
    begun = time.monotonic()
    cluster.apply(MANIFEST.format(name=name, count=count, image=NAME))
    words = ("ps", "--quiet", "--filter", "label=io.mandor.owner", "--filter", f"label=io.mandor.name={name}-0")
    if count == 1:
        while not docker.cli(*words):
            time.sleep(0.005)
        return time.monotonic() - begun
    cluster.wait_running(name, count, patience=PATIENCE)
    return time.monotonic() - begun


def gone(cluster: Cluster, name: str) -> None:
    cluster.call("DELETE", f"/v1/workloads/{name}")
    eventually(f"{name} is gone", lambda: not cluster.instances(name), patience=PATIENCE)


def one_by_one(cluster: Cluster, docker: Docker, rounds: int) -> dict[str, float]:
    hand, mandor = [], []
    for number in range(rounds):
        hand.append(by_hand(docker, f"hand-{number}"))
        docker.cli("rm", "--force", f"hand-{number}")
        mandor.append(by_mandor(cluster, docker, f"one{number}"))
        gone(cluster, f"one{number}")
    return {
        "docker_run_ms": round(1000 * statistics.median(hand)),
        "mandor_submit_to_running_ms": round(1000 * statistics.median(mandor)),
        "added_ms": round(1000 * (statistics.median(mandor) - statistics.median(hand))),
    }


def many(cluster: Cluster, docker: Docker, count: int) -> dict[str, float]:
    begun = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: by_hand(docker, f"many-{number}"), range(count)))
    hand = time.monotonic() - begun
    docker.cli("rm", "--force", *(f"many-{number}" for number in range(count)))
    mandor = by_mandor(cluster, docker, "many", count)
    return {"count": count, "docker_run_s": round(hand, 2), "mandor_s": round(mandor, 2)}


def at_rest(cluster: Cluster, seconds: float) -> dict[str, float]:
    """With whatever runs now."""
    program = cluster.agents["n1"].process
    assert program is not None
    process = psutil.Process(program.pid)
    before = process.cpu_times()
    time.sleep(seconds)
    after = process.cpu_times()
    used = after.user + after.system - before.user - before.system
    return {
        "running": len(cluster.instances(phase="Running")),
        "agent_cpu_percent": round(100 * used / seconds, 1),
        "agent_rss_mib": round(process.memory_info().rss / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args()
    binary = find("docker")
    if binary is None:
        sys.exit(missing("docker"))
    with tempfile.TemporaryDirectory() as folder:
        docker = start_docker(binary, Path(folder, "docker"))
        try:
            docker.cli("load", data=busybox_image())
            with Cluster(Path(folder, "cluster")) as cluster:
                cluster.start_server()
                environ = {"DOCKER_HOST": f"unix://{docker.socket}", "MANDOR_HEARTBEAT": "10s"}
                cluster.start_agent(
                    "n1",
                    engines=("docker",),
                    environ=environ,
                    options=("--capacity", "cpu=1000", "--capacity", "memory=1000Gi"),
                )
                cluster.wait_nodes("n1")
                result = {
                    "one": one_by_one(cluster, docker, options.rounds),
                    "many": many(cluster, docker, options.count),
                    "rest": at_rest(cluster, options.seconds),
                }
        finally:
            docker.close()
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(
            json.dumps({"bench": "engines", "machine": machine(), "result": result}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
