"""Started as `python -I -S run.py FOLDER`; with `COMMAND …` after it, to run something beside the task.

As `run.py mounts` it says with its exit code whether tasks can have mounts of their own here.
"""

import os
import sys


def main() -> None:
    # Isolated and without site, the interpreter knows the standard library alone; this package is where this file is.
    root = os.path.abspath(__file__)
    for _ in range(4):
        root = os.path.dirname(root)
    sys.path.append(root)
    if len(sys.argv) > 2:
        from mandor.engines.shim.entry import run_inside
        from mandor.engines.shim.light import read

        folder = sys.argv[1]
        run_inside(read(f"{folder}/launch.json"), int(read(f"{folder}/running.json")["pid"]), sys.argv[2:])
    if sys.argv[1] == "mounts":
        from mandor.engines.shim.mounts import can_make

        sys.exit(0 if can_make() else 1)
    from mandor.engines.shim.supervisor import supervise

    supervise(sys.argv[1])


if __name__ == "__main__":
    main()
