"""What a user installs: a wheel that builds, is typed, and brings the command."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(ROOT)],
        check=True,
        capture_output=True,
        timeout=150,
    )
    (built,) = out.glob("mandor-*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_is_typed_and_whole(wheel: zipfile.ZipFile) -> None:
    inside = set(wheel.namelist())
    assert "mandor/py.typed" in inside
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "mandor").rglob("*.py")}
    assert sources <= inside


def test_the_wheel_brings_the_command_and_the_extension_points(wheel: zipfile.ZipFile) -> None:
    (table,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    text = wheel.read(table).decode()
    assert "mandor = mandor.cli.main:main" in text
    assert "[mandor.engines]" in text
    assert "[mandor.stores]" in text


def test_the_wheel_holds_nothing_but_the_package(wheel: zipfile.ZipFile) -> None:
    assert {name.split("/")[0].split("-")[0] for name in wheel.namelist()} == {"mandor"}
