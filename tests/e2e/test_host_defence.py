"""Real processes that eat memory, fill a small disk, or storm the log: they go, the host and the others stay."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import disk
from tests.e2e.cluster import Cluster, eventually

KEEPER = """\
name: keeper
priority: 10
command: [sleep, "1000"]
resources: {memory: 50Mi}
stop: {grace: 1s}
---
"""
EATER = f"""\
name: eater
command: [{sys.executable}, -c, "import time; kept = bytearray(b'x') * (395 << 20); time.sleep(1000)"]
resources: {{memory: 50Mi}}
stop: {{grace: 1s}}
"""
FILLER = """\
name: filler
command: [sh, -c, "head -c 50M /dev/zero > fill; sleep 1000"]
stop: {grace: 1s}
"""
STORM = """\
name: filler
command: [sh, -c, "yes the same line again and again; sleep 1000"]
options: {process: {log_size: 30Mi}}
stop: {grace: 1s}
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """64 MiB of its own, where an agent keeps its data."""
    with disk.small_disk(tmp_path / "disk", Cluster(tmp_path).home("n1"), 64) as folder:
        yield folder


def ended(cluster: Cluster, reason: str) -> list[str]:
    return [each["spec"]["message"] for each in cluster.items("events") if each["spec"]["reason"] == reason]


@pytest.mark.req("S3-7", "S3-35", "S3-40", "S3-41", "S3-43")
def test_a_process_that_eats_the_memory_goes_and_what_matters_stays(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("n1", options=("--capacity", "memory=400Mi", "--pressure", "memory=20%:10%"))
        cluster.wait_nodes("n1")
        cluster.apply(KEEPER + EATER)
        (keeper,) = cluster.wait_running("keeper", 1)
        (message,) = eventually("the eater goes", lambda: ended(cluster, "Evicted"))
        assert message.startswith("the node is short of memory: ")
        eventually("the node says so", lambda: cluster.items("nodes")[0]["status"].get("pressure") == ["memory"])

        def waits() -> bool:
            found = cluster.instances("eater")
            return bool(found) and "short of memory" in found[0]["status"].get("message", "")

        eventually("nothing unimportant comes there again", waits)
        (still,) = cluster.wait_running("keeper", 1)
        assert still["meta"]["uid"] == keeper["meta"]["uid"]


@pytest.mark.req("S3-9", "S3-42")
@pytest.mark.parametrize("greedy", [FILLER, STORM], ids=["a file that grows", "a log storm"])
def test_a_process_that_fills_the_disk_goes_and_its_disk_is_given_back(
    tmp_path: Path, small_disk: Path, greedy: str
) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        cluster.start_agent("n1", options=("--pressure", "disk=40%:30%"))
        cluster.wait_nodes("n1")
        cluster.apply(KEEPER)
        (keeper,) = cluster.wait_running("keeper", 1)
        cluster.apply(greedy)
        (message, *_) = eventually("the filler goes", lambda: ended(cluster, "Evicted"))
        assert message.startswith("the node is short of disk: ")
        eventually("there is room again", lambda: shutil.disk_usage(small_disk).free > 30 << 20)
        (still,) = cluster.wait_running("keeper", 1)
        assert still["meta"]["uid"] == keeper["meta"]["uid"]
