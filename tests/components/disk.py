"""A small disk of a test's own: a file, mounted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.components import environment, find


@contextmanager
def small_disk(image: Path, folder: Path, mebibytes: int) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a disk needs root")
    with image.open("wb") as file:
        file.truncate(mebibytes << 20)
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run([str(find("e2fsprogs")), "-q", image], check=True, env=os.environ | environment("e2fsprogs"))
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
