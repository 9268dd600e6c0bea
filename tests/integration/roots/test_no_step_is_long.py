"""No step of scheduler, controllers or API processes all of very many instances without yielding to the event loop."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

LINES_MOST = 27_000
"""Lines of Python that one step of the event loop may execute; a loop over all 15,000 instances executes more."""
DECIDED_MOST = 80_000
"""Lines of Python that consecutive decisions may execute; a sum over all instances in each of them executes more."""
HANG_SECONDS = 50
TRIES = 3


@pytest.mark.req("S0-16")
def test_no_step_visits_all_instances() -> None:
    (most, where), (of_decisions, whose) = counted()
    assert 0 < most <= LINES_MOST, where
    assert 0 < of_decisions <= DECIDED_MOST, whose


def counted() -> list[tuple[int, str]]:
    """The most lines of a step, and where. A process that Python itself has brought to a standstill is begun anew."""
    command = [sys.executable, "-m", "tests.integration.roots.steps"]
    for _ in range(TRIES):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            continue
        assert done.returncode == 0, done.stderr
        found: list[tuple[int, str]] = json.loads(done.stdout)
        return found
    raise AssertionError(f"it did not end within {HANG_SECONDS} s, {TRIES} times")
