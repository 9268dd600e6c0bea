"""Tests of a missing component: they are skipped on a laptop, and fail in CI."""

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


SKIPS = """
import pytest

def test_allowed(): pytest.skip("the engine does not announce sandbox")
def test_plain(): pytest.skip("no time today")
@pytest.mark.skipif(True, reason="needs a full moon")
def test_marked(): ...
"""


@pytest.mark.parametrize(("ci", "counted"), [("true", "1 failed, 1 skipped, 1 error"), ("", "3 skipped")])
def test_in_ci_a_test_is_skipped_only_for_a_limit_of_an_engine_or_of_the_machine(
    tmp_path: Path, ci: str, counted: str
) -> None:
    (tmp_path / "test_sample.py").write_text(SKIPS)
    command = [sys.executable, "-m", "pytest", "-n0", "-p", "no:cacheprovider", "-p", "tests.conftest", str(tmp_path)]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", "-c", "/dev/null"],
        cwd=ROOT,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert counted in done.stdout, done.stdout + done.stderr
