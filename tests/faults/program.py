"""Runs a module of Mandor with a wall clock that can be set while it runs: `program.py FILE MODULE ARGUMENT…`.

The file holds by how many seconds the clock is wrong. Only what Python's own `time.time` tells is: nobody else's clock
on this machine changes, and the monotonic one is right, as it is where an administrator or NTP sets the time.
"""

from __future__ import annotations

import mmap
import os
import runpy
import struct
import sys
import time
from pathlib import Path

_WRONG = struct.Struct("d")


def set_clock(file: Path, wrong_by: float) -> None:
    """In its place: who has the file in its memory would die of one that is empty for a moment."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(handle, _WRONG.pack(wrong_by), 0)
    finally:
        os.close(handle)


def main() -> None:
    path, module, *arguments = sys.argv[1:]
    with open(path, "r+b") as file:
        wrong = mmap.mmap(file.fileno(), _WRONG.size, access=mmap.ACCESS_READ)
    right = time.time
    time.time = lambda: right() + _WRONG.unpack(wrong)[0]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
