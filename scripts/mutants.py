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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COSMIC_RAY = "cosmic-ray==8.7.0"
COPIED = ("src", "tests", "scripts", "docs", "examples", "deploy", "pyproject.toml")
MUTANT_SECONDS = 180
"""Time of the tests of one mutant; a mutant that takes longer counts as found."""


@dataclass(frozen=True)
class Target:
    """Some code, and the tests that must notice a change in it."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


TARGETS = {
    "placement": Target(
        ("src/mandor/placement/**/*.py",),
        ("tests/unit/placement", "tests/property/test_placement.py", "tests/property/test_preemption.py"),
    ),
    "controllers": Target(
        ("src/mandor/controllers/*_plan.py",), ("tests/unit/controllers", "tests/property/test_plan.py")
    ),
    "sync": Target(
        ("src/mandor/agent/sync.py",), ("tests/unit/agent/test_sync.py", "tests/property/test_agent_sync.py")
    ),
    "baremetal": Target(("src/mandor/baremetal/*.py",), ("tests/unit/baremetal", "tests/property/test_baremetal.py")),
    "store": Target(
        tuple(
            f"src/mandor/store/{name}.py"
            for name in (
                "batching",
                "draft",
                "feed",
                "index",
                "list_watch",
                "memory",
                "mirror",
                "sorted_objects",
                "sqlite",
            )
        ),
        (
            "tests/unit/store",
            "tests/conformance/test_store_memory.py",
            "tests/conformance/test_store_sqlite.py",
            "tests/property/test_store_model.py",
        ),
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


def test_command(target: Target) -> list[str]:
    return [
        *(str(ROOT / ".venv/bin/python"), "-m", "pytest", "-n0", "-x", "-q", "-p", "no:cacheprovider"),
        *("-p", "no:schemathesis", *target.tests),
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


def prepare(name: str, target: Target, folder: Path) -> Path:
    """Find all changes of a target; return the session's file."""
    paths = sorted(str(path.relative_to(folder)) for source in target.sources for path in folder.glob(source))
    config = [
        "[cosmic-ray]",
        f"module-path = {paths!r}",
        f"timeout = {MUTANT_SECONDS}.0",
        "excluded-modules = []",
        f'test-command = "{" ".join(test_command(target))}"',
        "[cosmic-ray.distributor]",
        'name = "local"',
    ]
    (folder / f"{name}.toml").write_text("\n".join(config) + "\n")
    cosmic_ray("init", f"{name}.toml", f"{name}.sqlite", folder=folder)
    return folder / f"{name}.sqlite"


def sample(session: Path, count: int, seed: int) -> int:
    """Keep a random sample of the changes; return its size."""
    columns = "job_id, operator_name, module_path, start_pos_row, start_pos_col, occurrence"
    with sqlite3.connect(session) as database:
        rows = database.execute(f"SELECT {columns} FROM mutation_specs").fetchall()
        known = sorted((row for row in rows if OPERATORS.fullmatch(row[1])), key=lambda row: row[1:])
        kept = {row[0] for row in random.Random(seed).sample(known, min(count, len(known)))}
        for table in ("mutation_specs", "work_items"):
            found = [row[0] for row in database.execute(f"SELECT job_id FROM {table}") if row[0] not in kept]
            database.executemany(f"DELETE FROM {table} WHERE job_id = ?", [(each,) for each in found])
    return len(kept)


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
    for name in options.targets or TARGETS:
        with tempfile.TemporaryDirectory(prefix="mandor-mutants-") as place:
            folder = Path(place)
            copy_tree(folder)
            baseline = subprocess.run(
                test_command(TARGETS[name]),
                cwd=folder,
                env=environ(folder),
                capture_output=True,
                text=True,
                check=False,
            )
            if baseline.returncode:
                print(baseline.stdout[-3000:], f"{name}: the tests fail without any change", sep="\n")
                return 1
            session = prepare(name, TARGETS[name], folder)
            count = sample(session, options.count, options.seed)
            began = time.monotonic()
            cosmic_ray("exec", f"{name}.toml", f"{name}.sqlite", folder=folder, seconds=options.minutes * 60)
            found = list(survivors(session))
            seconds = time.monotonic() - began
            print(f"{name}: {len(found)} of {tried(session)} changes noticed by no test", end="")
            print(f" ({count} in the sample of seed {options.seed}, {seconds:.0f} s)")
            print("\n".join(f"  {each}" for each in found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
