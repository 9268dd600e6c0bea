"""Every case of Kubernetes' scheduler_perf: what Mandor makes of it, beside what Kubernetes asks of its own scheduler.

python bench/scheduler_perf.py FOLDER [--store memory] [--largest 20000] [--only NAME …] [--json FILE]

FOLDER holds the `performance-config.yaml` files (kubernetes/test/integration/scheduler_perf). Workloads of a case that
differ in feature gates alone are run once. What has no counterpart here is tried again without it, and marked so. Each
result has the date and the load of the machine when it was measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.machine import machine
from mandor.bench.scenario import Case, Workload, read_cases

KEPT = ("throughput", "bound", "seconds", "decision_ms", "bound_after_ms", "cpu_seconds", "loop_cpu_seconds")
KEPT += ("bound_per_cpu_second", "etcd_cpu_seconds", "memory_peak_bytes", "nodes", "threshold", "notes")


def chosen(case: Case, largest: int) -> list[Workload]:
    """Choose one of several equal nodes that fit."""
    found: dict[str, Workload] = {}
    for workload in case.workloads:
        numbers = [value for value in workload.params.values() if isinstance(value, int)]
        if max(numbers, default=0) <= largest:
            known = found.setdefault(json.dumps(workload.params), workload)
            if workload.threshold and not known.threshold:
                found[json.dumps(workload.params)] = workload
    return list(found.values())


def run(file: Path, name: str, store: str, seconds: int, *, lenient: bool) -> tuple[dict[str, Any] | None, str]:
    command = [sys.executable, "-m", "mandor.cli.main", "bench", str(file), "--case", name, "--store", store]
    command += ["-o", "json", "--timeout", f"{seconds}s", *(["--lenient"] if lenient else [])]
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds + 60)
    except subprocess.TimeoutExpired:
        return None, f"it held the event loop, and was ended {seconds + 60} s after its begin"
    if ended.returncode == 0:
        return json.loads(ended.stdout), ""
    told = [line.removeprefix("error: ") for line in ended.stderr.splitlines() if line.startswith("error: ")]
    return None, "; ".join(told).replace(str(file.parent.parent), "") if told else ended.stderr[-300:]


def measure(file: Path, name: str, store: str, seconds: int) -> dict[str, Any]:
    results, problem = run(file, name, store, seconds, lenient=False)
    if results is not None:
        return {key: results[key] for key in KEPT if key in results}
    again, problem_again = run(file, name, store, seconds, lenient=True)
    if again is not None:
        return {"as_it_is": problem, **{key: again[key] for key in KEPT if key in again}}
    return {"as_it_is": problem, "without": problem_again}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--store", choices=["memory", "sqlite", "etcd"], action="append")
    parser.add_argument("--largest", type=int, default=20_000, help="leave out workloads with a larger number in them")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="cases, or CASE/WORKLOAD")
    parser.add_argument("--timeout", type=int, default=120)
    parser.add_argument("--json", type=Path, help="keep the results here; what is there already is kept, too")
    asked = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(), "results": {}}
    if asked.json and asked.json.exists():
        found = json.loads(asked.json.read_text())
    for store in asked.store or ["memory"]:
        kept = found["results"].setdefault(store, {})
        for file in sorted(asked.folder.rglob("performance-config.yaml")):
            for case in read_cases(file):
                for workload in chosen(case, asked.largest):
                    name = f"{case.name}/{workload.name}"
                    if asked.only and name not in asked.only and case.name not in asked.only:
                        continue
                    now = machine()
                    kept[name] = measure(file, name, store, asked.timeout)
                    kept[name] |= {"at": now["at"], "load_at_start": now["load_at_start"]}
                    speed = kept[name].get("throughput", {}).get("average")
                    bar = f" (Kubernetes' bar: {workload.threshold:g})" if workload.threshold else ""
                    bar += ", but not as it is written" if "as_it_is" in kept[name] else ""
                    print(
                        f"{store:7} {name:70} {f'{speed:,.0f}/s{bar}' if speed else kept[name]['as_it_is'][:90]}",
                        flush=True,
                    )
                    if asked.json:
                        asked.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
