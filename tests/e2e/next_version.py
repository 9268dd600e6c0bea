"""The next version of Mandor, as far as a test needs it: a copy of this one with a feature and fields more."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import mandor

VERSION, FEATURE = "0.2.0", "racks"

_CHANGES: dict[str, list[tuple[str, str]]] = {
    "__init__.py": [(r'__version__ = "[^"]*"', f'__version__ = "{VERSION}"')],
    "model/features.py": [(r'    "snapshot",\n', f'    "{FEATURE}",\n    "snapshot",\n')],
    # A field of a node's spec, which people write, and one of its status, which its agent writes.
    "model/node.py": [
        (r"from typing import ", "from typing import Annotated, "),
        (r"(from mandor\.model\.log_sink)", r"from mandor.model.features import needs\n\1"),
        (r'(\n    pool: str = "default"\n)', rf'\1    rack: Annotated[str, needs("{FEATURE}")] = ""\n'),
        (r'(\n    agent_version: str = ""\n)', rf'\1    firmware: Annotated[str, needs("{FEATURE}")] = ""\n'),
    ],
    "agent/fingerprint.py": [(r"(\n +)agent_version=__version__,", r'\1agent_version=__version__,\1firmware="f2",')],
    "api/writers.py": [(r'"agent_version", ', r'"agent_version", "firmware", ')],
    # A field deep in a workload, of which releases are made.
    "model/task.py": [
        (r"(from mandor\.model\.meta)", r"from mandor.model.features import needs\n\1"),
        (r"(\n    working_dir: Text \| None = None\n)", rf'\1    tempo: Annotated[int, needs("{FEATURE}")] = 0\n'),
    ],
}


def make_next_version(folder: Path) -> Path:
    """What PYTHONPATH has to be for it."""
    package = folder / "mandor"
    shutil.copytree(Path(mandor.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    for name, changes in _CHANGES.items():
        text = (package / name).read_text()
        for pattern, into in changes:
            text, count = re.subn(pattern, into, text, count=1)
            assert count == 1, f"{name} has no {pattern}"
        (package / name).write_text(text)
    return folder
