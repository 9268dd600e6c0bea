"""Three servers, three members of etcd and a dozen agents, real processes, through all faults: what was survived.

Bounds: no rule of `tests/faults/checker.py` is broken; another server leads within one and a half leases.
`--seed N --rounds M` has the same faults again, in the same order and for as long; whom they meet at what the machine
decides.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench._api import report as keep
from scripts.components import find, missing
from tests.e2e.cluster import eventually
from tests.faults.inflict import Trouble
from tests.faults.network import why_not
from tests.faults.plan import Fault, make_plan
from tests.faults.report import ELECTIONS, in_leases, report, shown, took_over
from tests.faults.rig import SERVERS, Rig
from tests.faults.trial import Trial, run_trial

LEASES_MOST = 1.5
LEASE_SECONDS = 3.0


def etcd() -> Path:
    found = find("etcd")
    if found is None:
        sys.exit(missing("etcd"))
    return found


def try_once(seed: int, rounds: int) -> Trial:
    why = why_not()
    if why:
        print(f"nothing is cut off: {why}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="mandor-faults-") as folder:
        try:
            return run_trial(Path(folder), etcd(), seed, rounds=rounds, lease=LEASE_SECONDS, real=not why)
        except BaseException:
            print(f"again: python bench/faults.py --failovers 0 --seed {seed} --rounds {rounds}", file=sys.stderr)
            for fault in make_plan(seed, rounds=rounds, lease=LEASE_SECONDS):
                print(f"  {fault.lane}: {fault}", file=sys.stderr)
            raise


def measure_failovers(times: int, seed: int) -> dict[str, Any]:
    """The leader of a healthy cluster is killed, or paused, again and again."""
    took: dict[str, list[float]] = {"kill the leader": [], "pause the leader": []}
    dice = random.Random(seed)
    with (
        tempfile.TemporaryDirectory(prefix="mandor-faults-") as folder,
        Rig(Path(folder), etcd(), fakes=2, processes=1, lease=LEASE_SECONDS, real=not why_not()) as rig,
    ):
        trouble = Trouble(rig)
        for number in range(times):
            eventually("somebody leads", lambda: rig.leaders().keys() >= {*ELECTIONS})
            kind = sorted(took)[number % 2]
            suffered = trouble.inflict(Fault("servers", kind, 0.0, LEASE_SECONDS * 2, dice.randrange(2**32)))
            led = [name for name, server in leaders_at(rig, suffered.begun).items() if server in suffered.victims]
            ends = [took_over(rig.changes(), election, suffered.begun) for election in led]
            took[kind] += [end - suffered.begun for end in ends if end is not None]
            for server in range(SERVERS):
                rig.wait_ready(server)
            time.sleep(dice.uniform(0.5, 0.5 + LEASE_SECONDS / 5))  # at no certain moment of a renewal
    return {kind: in_leases(seconds, LEASE_SECONDS) for kind, seconds in took.items()}


def leaders_at(rig: Rig, at: float) -> dict[str, str]:
    """The server that led each election then."""
    found = {}
    for each in rig.changes():
        if each.kind == "lease" and each.name.startswith("leader-") and each.at <= at and each.facts.get("holder"):
            found[each.name.removeprefix("leader-")] = rig.names[rig.urls.index(each.facts["address"])]
    return {election: server for election, server in found.items() if election in ELECTIONS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="where the report goes")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--trials", type=int, default=1, help="each with the next seed")
    parser.add_argument("--rounds", type=int, default=1, help="how often each fault happens in a trial")
    parser.add_argument("--failovers", type=int, default=16, help="how often a leader is killed or paused")
    options = parser.parse_args()
    trials = [try_once(options.seed + number, options.rounds) for number in range(options.trials)]
    found = report(trials)
    slowest = 0.0
    if options.failovers:
        found["failover"] = measure_failovers(options.failovers, options.seed)
        slowest = max(each.get("most", 0.0) for each in found["failover"].values())
    print(shown(found), *(line for trial in trials for line in trial.evidence()), sep="\n", file=sys.stderr)
    keep("faults", found, options.json)
    if slowest > LEASES_MOST:
        print(f"a failover took {slowest} leases; at most {LEASES_MOST} are allowed", file=sys.stderr)
    return 1 if found["violations"] or slowest > LEASES_MOST else 0


if __name__ == "__main__":
    sys.exit(main())
