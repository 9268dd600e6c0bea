"""Writes requirements.txt from pyproject.toml, for `pip install -r requirements.txt` in a virtual environment."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "requirements.txt"
EXTRAS = ("etcd", "nats", "rabbitmq")
"""Extras that are installed, too: the store, the event bus and the queue of a control plane."""
HEAD = """\
# The package and its dependencies for `pip install -r requirements.txt`; `make reference` writes this file.
# requirements.lock has the exact versions that the tests use.
"""


def made() -> str:
    """Return the text of requirements.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for name in EXTRAS for each in project["optional-dependencies"][name]]
    lines = sorted({*project["dependencies"], *extras}, key=str.lower)
    return HEAD + "\n".join([*lines, "-e ."]) + "\n"


if __name__ == "__main__":
    FILE.write_text(made())
    sys.stdout.write(f"{FILE.name} written\n")
