#!/usr/bin/env python3
"""Mutation testing: makes small changes in the deciding code, one at a time, and lists those that no test notices.

`mutants.py [TARGET…] [--count 40] [--seed 1] [--minutes 15]`: a random sample of the changes that cosmic-ray finds in
each target, tried on a copy of the tree. The same seed gives the same sample.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COSMIC_RAY = "cosmic-ray==8.7.0"
COPIED = ("src", "tests", "scripts", "docs", "examples", "deploy", "pyproject.toml")
MUTANT_SECONDS = 180
"""Time of the tests of one mutant; a mutant that takes longer counts as found."""


@dataclass(frozen=True)
class Target:
    """Some code, and the tests that must notice a change in it: besides these, all that are named after the module."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further tests of a module, where their names differ."""


STORES = ("batching", "draft", "feed", "index", "list_watch", "memory", "mirror", "sorted_objects", "sqlite")
TARGETS = {
    "placement": Target(
        ("src/mandor/placement/**/*.py",), ("tests/unit/placement", "tests/property/test_placement.py")
    ),
    "controllers": Target(
        ("src/mandor/controllers/*_plan.py",),
        ("tests/unit/controllers", "tests/sim/test_controllers.py"),
        {
            "growth_plan": ("tests/sim/test_node_autoscale.py",),
            "machine_plan": ("tests/sim/test_node_autoscale.py",),
            "need_plan": ("tests/sim/test_node_autoscale.py",),
            "update_plan": ("tests/sim/test_rollouts.py",),
            "move_plan": ("tests/sim/test_drain.py", "tests/sim/test_rebalance.py"),
            "in_place_plan": ("tests/sim/test_rollouts.py",),
            "workload_plan": ("tests/property/test_plan.py",),
        },
    ),
    "sync": Target(
        ("src/mandor/agent/sync.py",), ("tests/unit/agent/test_sync.py", "tests/property/test_agent_sync.py")
    ),
    "baremetal": Target(
        ("src/mandor/baremetal/*_plan.py", "src/mandor/baremetal/machine.py"),
        ("tests/unit/baremetal", "tests/property/test_baremetal.py", "tests/property/test_machines.py"),
    ),
    "store": Target(
        tuple(f"src/mandor/store/{name}.py" for name in STORES),
        ("tests/unit/store", "tests/conformance/test_store_memory.py", "tests/property/test_store_model.py"),
        {"sqlite": ("tests/conformance/test_store_sqlite.py", "tests/integration/store/test_sqlite.py")},
    ),
}
OPERATORS = re.compile(
    r"core/(AddNot|NumberReplacer|ReplaceAndWithOr|ReplaceOrWithAnd|ReplaceTrueWithFalse|ReplaceFalseWithTrue"
    r"|ReplaceBreakWithContinue|ReplaceContinueWithBreak|ZeroIterationForLoop|ReplaceUnaryOperator_Delete_Not"
    r"|ReplaceComparisonOperator_(Lt_LtE|LtE_Lt|Gt_GtE|GtE_Gt|Eq_NotEq|NotEq_Eq|Is_IsNot|IsNot_Is)"
    r"|ReplaceBinaryOperator_(Add_Sub|Sub_Add|Mul_FloorDiv|FloorDiv_Mul|Div_Mul))"
)
"""Kinds of changes. The others change annotations, or give errors that every test would notice."""


def copy_tree(folder: Path) -> None:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def environ(folder: Path) -> dict[str, str]:
    """Return the environment in which tests import the copy."""
    components = os.environ.get("MANDOR_COMPONENTS") or str(ROOT / ".components")
    return os.environ | {"PYTHONPATH": str(folder / "src"), "MANDOR_COMPONENTS": components, "CI": ""}


def tests_of(target: Target, module: Path) -> list[str]:
    """Return the tests of a module: those with its name first, since they find most changes."""
    name = module.stem.removesuffix("_plan")
    folders = ("unit", "property", "sim", "scenarios")
    named = [path for each in folders for path in (ROOT / "tests" / each).rglob(f"test_{name}*.py")]
    found = [str(path.relative_to(ROOT)) for path in sorted(named)]
    return list(dict.fromkeys([*found, *target.others.get(module.stem, ()), *target.tests]))


def test_command(tests: Sequence[str]) -> list[str]:
    return [
        *(str(ROOT / ".venv/bin/python"), "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider"),
        *("-p", "no:schemathesis", *tests),
    ]


def cosmic_ray(*words: str, folder: Path, seconds: float = 600) -> None:
    """Run the tool in an environment of its own; at the end of its time it is stopped, and the results so far count."""
    command = [str(ROOT / ".venv/bin/uv"), "tool", "run", "-q", "--from", COSMIC_RAY, "cosmic-ray", *words]
    process = subprocess.Popen(command, cwd=folder, env=environ(folder), start_new_session=True)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 15)
        process.wait()


def write_config(file: Path, modules: Sequence[str], tests: Sequence[str]) -> None:
    lines = [
        "[cosmic-ray]",
        f"module-path = {list(modules)!r}",
        f"timeout = {MUTANT_SECONDS}.0",
        "excluded-modules = []",
        f'test-command = "{" ".join(test_command(tests))}"',
        "[cosmic-ray.distributor]",
        'name = "local"',
    ]
    file.write_text("\n".join(lines) + "\n")


def find_changes(target: Target, folder: Path) -> Path:
    """Find all changes of a target; return the session's file."""
    paths = sorted(str(path.relative_to(folder)) for source in target.sources for path in folder.glob(source))
    write_config(folder / "all.toml", paths, target.tests)
    cosmic_ray("init", "all.toml", "all.sqlite", folder=folder)
    return folder / "all.sqlite"


def sample(session: Path, count: int, seed: int) -> dict[str, set[str]]:
    """Return a random sample of the changes: their ids by module."""
    columns = "job_id, operator_name, module_path, start_pos_row, start_pos_col, occurrence"
    with sqlite3.connect(session) as database:
        rows = database.execute(f"SELECT {columns} FROM mutation_specs").fetchall()
    known = sorted((row for row in rows if OPERATORS.fullmatch(row[1])), key=lambda row: row[1:])
    kept: dict[str, set[str]] = {}
    for row in random.Random(seed).sample(known, min(count, len(known))):
        kept.setdefault(row[2], set()).add(row[0])
    return kept


def keep(session: Path, changes: Set[str]) -> None:
    """Remove all other changes from a session."""
    with sqlite3.connect(session) as database:
        for table in ("mutation_specs", "work_items"):
            found = [row[0] for row in database.execute(f"SELECT job_id FROM {table}") if row[0] not in changes]
            database.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(each,) for each in found])


def survivors(session: Path) -> Iterator[str]:
    """Yield the changes that no test noticed."""
    query = (
        "SELECT module_path, start_pos_row, operator_name, diff FROM work_results "
        "JOIN mutation_specs USING (job_id) WHERE test_outcome = 'SURVIVED' ORDER BY 1, 2"
    )
    with sqlite3.connect(session) as database:
        for path, row, operator, diff in database.execute(query):
            changed = [line for line in diff.splitlines() if re.match(r"[+-](?![+-])", line)]
            yield "\n".join([f"{path}:{row}: {operator.removeprefix('core/')}", *(f"    {line}" for line in changed)])


def tried(session: Path) -> int:
    with sqlite3.connect(session) as database:
        return int(database.execute("SELECT count(*) FROM work_results").fetchone()[0])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; default: all")
    parser.add_argument("--count", type=int, default=40, help="changes for each target")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--minutes", type=float, default=15, help="time limit for each target")
    options = parser.parse_args(arguments)
    unknown = set(options.targets) - TARGETS.keys()
    if unknown:
        parser.error(f"no target called {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    return max([run(name, options.count, options.seed, options.minutes) for name in options.targets or TARGETS])


def run(name: str, count: int, seed: int, minutes: float) -> int:
    """Try a sample of the changes of a target, module by module, and print those that no test notices."""
    target = TARGETS[name]
    found, tries, total = list[str](), 0, 0
    with tempfile.TemporaryDirectory(prefix="mandor-mutants-") as place:
        folder = Path(place)
        copy_tree(folder)
        session = find_changes(target, folder)
        ends_at = time.monotonic() + minutes * 60
        for module, changes in sorted(sample(session, count, seed).items()):
            total += len(changes)
            if time.monotonic() > ends_at:
                continue
            tests, unchanged = tests_of(target, Path(module)), (folder / module).read_text()
            if not passes(tests, folder):
                return 1
            own = folder / "one.sqlite"
            shutil.copy(session, own)
            keep(own, changes)
            write_config(folder / "one.toml", [module], tests)
            left = max(ends_at - time.monotonic(), 1)
            cosmic_ray("exec", own.with_suffix(".toml").name, own.name, folder=folder, seconds=left)
            (folder / module).write_text(unchanged)  # The tool may have been stopped in the middle of a change.
            found += survivors(own)
            tries += tried(own)
    print(f"{name}: {len(found)} of {tries} changes noticed by no test ({total} in the sample of seed {seed})")
    print("".join(f"  {each}\n" for each in found), end="", flush=True)
    return 0


def passes(tests: Sequence[str], folder: Path) -> bool:
    """Return whether the tests pass without any change."""
    done = subprocess.run(
        test_command(tests), cwd=folder, env=environ(folder), capture_output=True, text=True, check=False
    )
    if done.returncode:
        print(done.stdout[-3000:], f"the tests fail without any change: {' '.join(tests)}", sep="\n")
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
