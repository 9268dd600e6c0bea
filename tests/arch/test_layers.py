"""The dependency rule: who may import whom, what stays pure, and where NumPy may stand."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "mandor"
IMPURE = {"asyncio", "time", "random", "socket", "subprocess", "sqlite3"}

PURE_FILES = sorted(
    [*SOURCE.glob("placement/**/*.py"), *SOURCE.glob("controllers/*_plan.py"), *SOURCE.glob("agent/sync.py")]
)


def imported(path: Path) -> Iterator[str]:
    """Every module the file imports, wherever the statement stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def roots(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported(path)}


def test_upper_layers_import_lower_ones_only() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", PURE_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_deciding_code_knows_no_clock_no_chance_and_no_io(path: Path) -> None:
    assert roots(path) & IMPURE == set()


def test_there_is_deciding_code_to_look_at() -> None:
    names = {str(path.relative_to(SOURCE)) for path in PURE_FILES}
    assert {"agent/sync.py", "controllers/workload_plan.py", "placement/cycle.py"} <= names


@pytest.mark.parametrize("path", sorted(SOURCE.glob("placement/plugins/*.py")), ids=lambda path: path.stem)
def test_a_plugin_sees_the_framework_and_no_other_plugin(path: Path) -> None:
    own = [module for module in imported(path) if module.startswith("mandor.placement")]
    assert [module for module in own if not module.startswith("mandor.placement.framework")] == []


def test_numpy_stays_inside_placement_and_the_simulator() -> None:
    users = {path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py") if "numpy" in roots(path)}
    assert users <= {"placement", "sim"}


def test_help_loads_no_server_code_and_no_numpy() -> None:
    """Measured on the modules themselves, since a lazy import hides from a reader of the sources."""
    look = "import sys, mandor.cli.main; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    heavy = {
        "numpy",
        "aiohttp",
        "starlette",
        "uvicorn",
        "rich",
        "grpc",
        "mandor.api",
        "mandor.roots",
        "mandor.placement",
    }
    assert heavy & set(done.stdout.split()) == set()
