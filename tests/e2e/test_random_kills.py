"""kill -9 of server or agents at any moment loses nothing that was acknowledged and starts nothing twice."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.e2e.chaos import FAKE, PROCESS, Chaos, doubled_fake_starts, doubled_process_starts
from tests.e2e.cluster import Cluster

SEED = int(os.environ.get("MANDOR_TEST_SEED", random.randrange(2**32)))
PATIENT = {"MANDOR_SUSPECT_AFTER": "60s", "MANDOR_LOST_AFTER": "120s", "MANDOR_LEASE": "2s"}
"""Nobody is given up: what starts twice then does so by mistake, not by policy."""


@pytest.mark.req("S0-17", "S0-18", "S0-25", "S0-27", "S0-28", "S0-31")
@pytest.mark.timeout(900)
@pytest.mark.slow
def test_hundreds_of_kills_with_the_fake_engine(tmp_path: Path) -> None:
    print(f"MANDOR_TEST_SEED={SEED}")
    with Cluster(tmp_path / "cluster", settings=PATIENT) as cluster:
        cluster.start_server()
        names = [f"n{number}" for number in range(5)]
        for name in names:
            cluster.start_agent(name, engines=("fake",))
        cluster.wait_nodes(*names)
        chaos = Chaos(cluster, random.Random(SEED), FAKE, tmp_path / "starts")

        chaos.run(kills=200)
        chaos.settle()

        assert doubled_fake_starts(cluster) == []


@pytest.mark.req("S0-17", "S0-27", "S0-28", "S0-29")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_dozens_of_kills_with_processes(tmp_path: Path) -> None:
    print(f"MANDOR_TEST_SEED={SEED}")
    log = tmp_path / "starts"
    with Cluster(tmp_path / "cluster", settings=PATIENT) as cluster:
        cluster.start_server()
        for name in ("n0", "n1"):
            cluster.start_agent(name)
        cluster.wait_nodes("n0", "n1")
        chaos = Chaos(cluster, random.Random(SEED), PROCESS, log)

        chaos.run(kills=40)
        chaos.settle()

        assert doubled_process_starts(log) == []
