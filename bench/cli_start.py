"""CPU time of `mandor --help`, compared with a bare interpreter and with its command-line library."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from machine import machine

WANTED_MS = 150
RUNS = 20


def cpu_ms(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "import click": [sys.executable, "-c", "import click"],
        "mandor --help": [str(Path(sys.executable).with_name("mandor")), "--help"],
    }
    result: dict[str, object] = {"wanted_ms": WANTED_MS}
    for name, command in commands.items():
        cpu_ms(command)  # compiles what is not compiled yet
        times = sorted(cpu_ms(command) for _ in range(RUNS))
        result[name] = {"best_ms": round(times[0], 1), "median_ms": round(statistics.median(times), 1)}
        print(f"{name:15} best {times[0]:6.1f} ms, median {statistics.median(times):6.1f} ms of CPU")
    if options.json:
        report = {"bench": "cli_start", "machine": machine(), "result": result}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
