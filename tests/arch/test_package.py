"""The wheel and requirements.txt: they install, the wheel is typed, and brings the command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from scripts import pip_requirements

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


@pytest.mark.req("S4-14")
def test_pip_puts_the_wheel_into_a_virtual_environment_and_the_command_runs_there(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """Dependencies come from the environment that runs the tests, so that no network is needed."""
    venv.create(tmp_path / "venv", with_pip=False)
    python, mandor = (tmp_path / "venv" / "bin" / name for name in ("python", "mandor"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel.filename)], check=True, capture_output=True, timeout=150)
    # Appended, not put first: the package itself has to come from the wheel.
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def said(*command: str | Path) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=60).stdout

    assert said(mandor, "version", "--client").startswith("mandor ")
    assert said(python, "-c", "import mandor; print(mandor.__file__)").startswith(str(tmp_path))


@pytest.mark.req("S4-14")
def test_requirements_txt_is_what_pyproject_says() -> None:
    assert pip_requirements.FILE.read_text() == pip_requirements.made(), "run `make reference`"


@pytest.mark.req("S4-14")
def test_pip_installs_requirements_txt() -> None:
    """All dependencies are in the environment that runs the tests: without an index, pip fails on any other one."""
    pip = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "-r", "requirements.txt"], cwd=ROOT, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    named = {re.split(r"[<>=]", line)[0] for line in pip_requirements.made().splitlines() if line[0] not in "#-"}
    said = done.stdout.lower()
    assert [each for each in named if f"satisfied: {each.lower()}" not in said] == []
    assert "would install mandor" in said
