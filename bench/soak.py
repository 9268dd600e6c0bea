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
from tests.e2e.chaos import FAKE, PROCESS, Chaos, doubled_fake_starts, doubled_process_starts
from tests.e2e.cluster import Cluster

PATIENT = {"MANDOR_SUSPECT_AFTER": "60s", "MANDOR_LOST_AFTER": "120s", "MANDOR_LEASE": "2s"}

ROUNDS = 4


def round_of(engine: str, seed: int, kills: int) -> int:
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder) / "cluster", settings=PATIENT) as cluster:
        log = Path(folder) / "starts"
        cluster.start_server()
        names = [f"n{number}" for number in range(4)]
        for name in names:
            cluster.start_agent(name, engines=(engine,))
        cluster.wait_nodes(*names)
        chaos = Chaos(cluster, random.Random(seed), FAKE if engine == "fake" else PROCESS, log)
        chaos.run(kills)
        chaos.settle()
        doubled = doubled_fake_starts(cluster) if engine == "fake" else doubled_process_starts(log)
        assert not doubled, f"seed {seed}: started twice: {doubled}"
        return chaos.kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    options = parser.parse_args()
    until, faults, number = time.monotonic() + options.minutes * 60, 0, 0
    while time.monotonic() < until:
        what, seed = ("every fault", "fake", "process")[number % 3], options.seed + number
        if what == "every fault":
            trial = try_once(seed, ROUNDS)
            again = f"again: python bench/faults.py --failovers 0 --rounds {ROUNDS} --seed {seed}"
            assert not trial.violations, "\n".join([*trial.violations, again])
            faults += len(trial.suffered)
        else:
            faults += round_of(what, seed, kills=60)
        number += 1
        print(f"seed {seed} ({what}): {faults} faults survived", flush=True)


if __name__ == "__main__":
    main()
