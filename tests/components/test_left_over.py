"""The check that no process outlives the tests: it must see what slipped away from its parent, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.components import left_over
from tests.components.left_over import MARK, end_left_over, find_left_over

# Starts a sleeper in a session of its own and ends: the sleeper's parent is then init, not the test.
SLIP_AWAY = """
import subprocess
from subprocess import DEVNULL
print(subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=DEVNULL, stderr=DEVNULL).pid)
"""


# In these tests `parent` is a process without children: this process's own may belong to other tests.


@pytest.fixture
def orphan(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setenv(MARK, "another-run")
    done = subprocess.run([sys.executable, "-c", SLIP_AWAY], capture_output=True, text=True, check=True, timeout=60)
    pid = int(done.stdout)
    yield pid
    if _alive(pid):
        psutil.Process(pid).kill()


def test_a_process_that_slipped_away_is_found_with_its_test(orphan: int, tmp_path: Path) -> None:
    (found,) = find_left_over("another-run", tmp_path, parent=orphan)
    assert found.pid == orphan
    assert "test_left_over.py" in found.test
    assert "sleep 300" in str(found)


def test_other_runs_processes_are_not_ours(orphan: int, tmp_path: Path) -> None:
    assert orphan not in [each.pid for each in find_left_over("a-third-run", tmp_path, parent=orphan)]


def test_a_process_that_works_in_the_tests_folder_is_found_without_a_mark(tmp_path: Path) -> None:
    bare = {key: value for key, value in os.environ.items() if key != MARK}
    with subprocess.Popen(["sleep", "300"], cwd=tmp_path, env=bare) as process:
        assert process.pid in [each.pid for each in find_left_over("no-such-run", tmp_path, parent=process.pid)]
        process.kill()


def test_what_is_left_over_is_ended(orphan: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(left_over, "GRACE_SECONDS", 0.0)
    assert [each.pid for each in end_left_over("another-run", tmp_path, parent=orphan)] == [orphan]
    deadline = time.monotonic() + 20
    while _alive(orphan) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(orphan)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
