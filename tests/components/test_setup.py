"""What `make setup` says on a machine that lacks something."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TOO_OLD = """#!/bin/sh
case "$*" in *version_info*) exit 1 ;; *--version*) echo "Python 3.9.2" ;; esac
"""
WITHOUT_VENV = """#!/bin/sh
case "$*" in *ensurepip*) exit 1 ;; *--version*) echo "Python 3.11.2" ;; esac
"""


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A copy of the set-up script, and a PATH with hardly anything on it."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup.sh", tmp_path / "scripts")
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "dirname", "rm", "awk"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    return tmp_path


def set_up(machine: Path, python: str | None = None) -> subprocess.CompletedProcess[str]:
    if python:
        (machine / "bin" / "python3").write_text(python)
        (machine / "bin" / "python3").chmod(0o755)
    return subprocess.run(
        ["bash", machine / "scripts" / "setup.sh"],
        env=os.environ | {"PATH": str(machine / "bin")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_no_python_is_reported_with_a_cure(machine: Path) -> None:
    done = set_up(machine)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer; found no python3" in done.stderr
    assert "apt-get install python3 python3-venv" in done.stderr


def test_a_python_that_is_too_old_is_named(machine: Path) -> None:
    done = set_up(machine, TOO_OLD)
    assert done.returncode == 1
    assert "found Python 3.9.2" in done.stderr


def test_a_python_without_venv_is_reported_with_a_cure(machine: Path) -> None:
    done = set_up(machine, WITHOUT_VENV)
    assert done.returncode == 1
    assert "comes without venv" in done.stderr
    assert "apt-get install python3-venv" in done.stderr
    assert not (machine / ".venv").exists()


def test_the_second_set_up_does_nothing(tmp_path: Path) -> None:
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "scripts/setup.sh", ".venv/.ready"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    shutil.copyfile(ROOT / "Makefile", tmp_path / "Makefile")

    done = subprocess.run(["make", "setup"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)

    assert (done.stdout, done.stderr) == ("", "")


def test_help_names_every_target() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    named = {line.split()[1] for line in done.stdout.splitlines()}
    assert {"help", "setup", "dev", "test", "check", "bench", "soak", "requirements", "clean"} <= named
