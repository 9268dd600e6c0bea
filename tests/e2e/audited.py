"""Runs a module of Mandor and writes each process that it starts to a file: `audited.py FILE MODULE ARGUMENT…`."""

from __future__ import annotations

import os
import runpy
import sys

STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system")


def main() -> None:
    path, module, *arguments = sys.argv[1:]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def note(event: str, given: tuple[object, ...]) -> None:
        if event in STARTS:
            os.write(file, f"{event} {given!r}\n".encode())

    sys.addaudithook(note)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
