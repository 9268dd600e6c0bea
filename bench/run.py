"""Runs the benches of this folder, one after another, and keeps what they measured in results/.

python bench/run.py                 all of them
python bench/run.py store watch     only these
python bench/run.py soak            300 orders of arrival of the platform example, then kill real clusters for --minutes
python bench/run.py soak --seeds 5000 --from 200    first, so many simulated clusters with faults, on all processors
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PLATFORM = HERE.parent / "examples" / "idp" / "scenario.yaml"
NOT_A_BENCH = {"run", "soak", "attack", "machine", "scheduler_perf", "traces"}


def benches() -> list[str]:
    return sorted(path.stem for path in HERE.glob("*.py") if path.stem not in NOT_A_BENCH and path.stem[0] != "_")


def soak(options: argparse.Namespace) -> int:
    """Run the simulations first: they are cheap, and a seed that fails can be repeated."""
    platform = ["simulate", str(PLATFORM), "--strategy", "should", "--seeds", str(options.orders), "-o", "json"]
    failed = 0
    if options.orders:
        print(f"== {PLATFORM.parent.name}: {options.orders} orders of arrival", flush=True)
        failed = subprocess.call([sys.executable, "-m", "mandor.cli.main", *platform], stdout=subprocess.DEVNULL)
    if options.seeds:
        words = ["simulate", "--faults", "--seeds", str(options.seeds), "--from", str(options.first)]
        failed |= subprocess.call([sys.executable, "-m", "mandor.cli.main", *words])
    minutes = options.minutes if options.minutes is not None else 0.0 if options.seeds else 30.0
    if minutes:
        failed |= subprocess.call([sys.executable, str(HERE / "soak.py"), "--minutes", str(minutes)])
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(benches())}, soak")
    parser.add_argument("--minutes", type=float, help="how long `soak` kills real clusters; 30, or 0 with --seeds")
    parser.add_argument("--seeds", type=int, default=0, help="how many simulated clusters `soak` puts through faults")
    parser.add_argument(
        "--orders", type=int, default=300, help="how many orders of arrival of the platform example `soak` runs"
    )
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first of these seeds")
    options = parser.parse_args()
    if options.names == ["soak"]:
        return soak(options)
    unknown = set(options.names) - set(benches())
    if unknown:
        parser.error(f"no bench called {', '.join(sorted(unknown))}; there is: {', '.join(benches())}, soak")
    failed = []
    for name in options.names or benches():
        print(f"== {name}", flush=True)
        result = HERE / "results" / f"{name}.json"
        result.parent.mkdir(exist_ok=True)
        if subprocess.call([sys.executable, str(HERE / f"{name}.py"), "--json", str(result)]) != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
