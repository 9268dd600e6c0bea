"""Time that simulations take: many seeds of the platform, a day of ten nodes, and an hour of 1,000 with 20 failures.

Limits in wall time on two cores: 75 s for 200 seeds of the platform with the strategy `should`, 75 s for the hour of
1,000 nodes and 10,000 instances. Each figure is one run of `mandor simulate`, including its start and its report.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from _api import report

ROOT = Path(__file__).parent.parent
MANDOR = Path(sys.executable).parent / "mandor"
PLATFORM = ROOT / "examples" / "idp" / "scenario.yaml"
PLATFORM_SECONDS_MOST = 75.0
LARGE_SECONDS_MOST = 75.0
FAILURES = 20


def cluster(name: str, nodes: int, workloads: int, each: int, end: str, timeline: list[dict[str, Any]]) -> str:
    """Return a scenario of equal nodes and equal services, as JSON, which is also YAML."""
    made = [
        {"name": f"web{number}", "image": "web:1", "replicas": each, "resources": {"cpu": "100m", "memory": "64Mi"}}
        for number in range(workloads)
    ]
    line = {"name": "n{n}", "count": nodes, "cpu": 4, "memory": "8Gi", "disk": "100Gi"}
    return json.dumps(
        {
            "name": name,
            "nodes": [line],
            "workloads": made,
            "timeline": [{"at": "0s", "phase": "begin"}, *timeline],
            "end": end,
        }
    )


def failures(nodes: int) -> list[dict[str, Any]]:
    """Return the timeline of `FAILURES` node failures, 2 minutes apart; each node returns after 10 minutes."""
    down = [(300 + 120 * number, "down", number) for number in range(FAILURES)]
    up = [(at + 600, "up", number) for at, _, number in down]
    return [{"at": f"{at}s", verb: f"n{number * nodes // FAILURES}"} for at, verb, number in sorted([*down, *up])]


def simulate(*arguments: str) -> dict[str, Any]:
    """Run `mandor simulate` and return its wall time, CPU time and result."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([str(MANDOR), "simulate", *arguments, "-o", "json"], stdout=subprocess.PIPE, check=False)
    seconds, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = json.loads(done.stdout)
    return {"seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1), "passed": found["passed"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1000, help="with ten instances each")
    parser.add_argument("--only", choices=("platform", "day", "large"), action="append")
    parser.add_argument("--json", metavar="FILE", help="also write the result there")
    options = parser.parse_args()
    wanted = options.only or ("platform", "day", "large")
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if "platform" in wanted:
            took = simulate(str(PLATFORM), "--seeds", str(options.seeds), "--strategy", "should")
            fast = took["seconds"] <= PLATFORM_SECONDS_MOST
            result["platform"] = {"seeds": options.seeds, **took, "within_bound": fast}
        if "day" in wanted:
            file = Path(folder) / "day.yaml"
            file.write_text(cluster("day", 10, 10, 8, "24h", []))
            result["day_of_ten_nodes"] = simulate(str(file), "--seed", "0")
        if "large" in wanted:
            file = Path(folder) / "large.yaml"
            file.write_text(cluster("large", options.nodes, 20, options.nodes // 2, "1h", failures(options.nodes)))
            took = simulate(str(file), "--seed", "0")
            fast = took["seconds"] <= LARGE_SECONDS_MOST
            size = {"nodes": options.nodes, "instances": 10 * options.nodes, "failures": FAILURES}
            result["an_hour"] = {**size, **took, "within_bound": fast}
    report("simulate", result, options.json)
    return 0 if all(part["passed"] and part.get("within_bound", True) for part in result.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
