"""The example engine keeps the promises of an engine: its own tests, with the bubblewrap of the components."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.components import find

PACKAGE = Path(__file__).parents[2] / "examples" / "engines" / "bubblewrap"


@pytest.mark.real("bubblewrap")
@pytest.mark.req("S0-2", "S0-13", "S0-27", "S0-29")
def test_the_tests_of_the_package_pass(tmp_path: Path) -> None:
    """As its author runs them: in its own folder, with its own settings."""
    environ = {
        **os.environ,
        "BWRAP": str(find("bubblewrap")),
        "PYTHONPATH": ":".join([str(PACKAGE / "src"), *sys.path[1:]]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "base")]
    done = subprocess.run(words, cwd=PACKAGE, env=environ, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
