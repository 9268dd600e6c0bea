"""Puts real clusters through faults for a long time: whole ones on etcd, and single servers that are only killed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.faults import try_once
from tests.e2e.chaos import survive

ROUNDS, KILLS = 4, 120


def every_fault(seed: int) -> int:
    trial = try_once(seed, ROUNDS)
    again = f"again: python bench/faults.py --failovers 0 --rounds {ROUNDS} --seed {seed}"
    assert not trial.violations, "\n".join([*trial.violations, again])
    return len(trial.suffered)


def kills(seed: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        doubled = survive(Path(folder), seed, KILLS)
    assert not doubled, f"seed {seed}: started twice: {doubled}"
    return KILLS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    until, survived, number = time.monotonic() + options.minutes * 60, 0, 0
    while time.monotonic() < until:
        trial, seed = (every_fault, kills)[number % 2], options.seed + number
        survived += trial(seed)
        number += 1
        print(f"seed {seed} ({trial.__name__}): {survived} faults survived", flush=True)


if __name__ == "__main__":
    main()
