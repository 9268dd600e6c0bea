"""The dependency rule: allowed imports between packages, purity of deciding code, and the use of NumPy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "mandor"
IMPURE = {"asyncio", "time", "random", "socket", "subprocess", "sqlite3"}

PURE_FILES = sorted([*SOURCE.glob("placement/**/*.py"), *SOURCE.rglob("*_plan.py"), *SOURCE.glob("agent/sync.py")])


class Import(NamedTuple):
    module: str
    lazy: bool
    """Whether the statement is inside a function."""
    types_only: bool
    """Whether the statement is in an `if TYPE_CHECKING` block."""


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in SOURCE.rglob("*.py")}


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """Every module that the file imports; `from package import module` counts as the module."""
    return tuple(_imports(ast.parse(path.read_text(encoding="utf-8")), lazy=False, types_only=False))


def _imports(node: ast.AST, *, lazy: bool, types_only: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, lazy, types_only) for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            yield Import(full if full in MODULES else node.module, lazy, types_only)
    lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
    for child in ast.iter_child_nodes(node):
        in_body = isinstance(node, ast.If) and child in node.body
        yield from _imports(child, lazy=lazy, types_only=types_only or (guarded and in_body))


def imported(path: Path) -> set[str]:
    return {each.module for each in imports_of(path)}


def roots(path: Path) -> set[str]:
    return {module.split(".")[0] for module in imported(path)}


def impure_paths(start: str) -> Iterator[str]:
    """Chains of imports from a module to an impure one, as text; types-only imports do not run."""
    before: dict[str, str] = {start: ""}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        for each in imports_of(MODULES[module]):
            if each.types_only:
                continue
            if each.module.split(".")[0] in IMPURE:
                chain = [each.module, module]
                while before[chain[-1]]:
                    chain.append(before[chain[-1]])
                yield " -> ".join(reversed(chain))
            elif each.module in MODULES and each.module not in before:
                before[each.module] = module
                waiting.append(each.module)


def cycles(edges: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one module (Tarjan's algorithm)."""
    found: set[frozenset[str]] = set()
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in edges[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            component = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(component) > 1:
                found.add(frozenset(component))

    for module in edges:
        if module not in number:
            visit(module)
    return found


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
def test_deciding_code_imports_no_clock_no_chance_and_no_io_even_indirectly(path: Path) -> None:
    assert list(impure_paths(name_of(path))) == []


def test_the_list_of_pure_files_is_not_empty() -> None:
    names = {str(path.relative_to(SOURCE)) for path in PURE_FILES}
    assert {"agent/sync.py", "controllers/workload_plan.py", "placement/cycle.py"} <= names


@pytest.mark.parametrize("path", sorted(SOURCE.glob("placement/plugins/*.py")), ids=lambda path: path.stem)
def test_a_plugin_sees_the_framework_and_no_other_plugin(path: Path) -> None:
    own = [module for module in imported(path) if module.startswith("mandor.placement")]
    assert [module for module in own if not module.startswith("mandor.placement.framework")] == []


def test_no_modules_import_each_other_not_even_for_types() -> None:
    """Imports inside functions do not count: they are deliberate."""
    edges = {
        name: {each.module for each in imports_of(path) if each.module in MODULES and not each.lazy} - {name}
        for name, path in MODULES.items()
    }
    assert cycles(edges) == set(), "let one module of the cycle depend on a protocol or on values instead"


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
