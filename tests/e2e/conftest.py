"""Real clusters for end-to-end tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """One server and one agent, `n1`, with the process engine."""
    with Cluster(tmp_path) as running:
        running.start_server()
        running.start_agent("n1")
        running.wait_nodes("n1")
        yield running
