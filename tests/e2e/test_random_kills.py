"""kill -9 of server or agents at any moment loses nothing that was acknowledged and starts nothing twice."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.e2e.chaos import survive

SEED = int(os.environ.get("MANDOR_TEST_SEED", random.randrange(2**32)))


@pytest.mark.req("S0-17", "S0-18", "S0-25", "S0-27", "S0-28", "S0-29", "S0-31")
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_dozens_of_kills_lose_nothing_and_start_nothing_twice(tmp_path: Path) -> None:
    """One server on SQLite; `test_faults.py` has several on etcd, and more than kills; `make soak` goes on longer."""
    print(f"MANDOR_TEST_SEED={SEED}")
    assert survive(tmp_path, SEED, kills=60) == []
