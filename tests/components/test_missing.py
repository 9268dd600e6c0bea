"""What a missing component does to the tests that need it: a skip on a laptop, a failure in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS_ETCD = "tests/components/test_etcd.py::test_a_single_member_keeps_what_is_written"


def run_without_components(empty: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: value for key, value in os.environ.items() if key != "CI"}
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-p", "no:schemathesis", NEEDS_ETCD]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=inherited | {"PATH": str(empty), "MANDOR_COMPONENTS": str(empty)} | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_missing_component_skips_its_tests_and_shows_how_to_get_it(tmp_path: Path) -> None:
    done = run_without_components(tmp_path)
    assert done.returncode == 0, done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert "etcd 3.4 or newer is missing" in line
    assert "make components" in line


def test_a_missing_component_is_a_failure_in_ci(tmp_path: Path) -> None:
    done = run_without_components(tmp_path, CI="true")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "etcd 3.4 or newer is missing" in done.stdout
