"""Started as `python -I -S run.py FOLDER`; with `COMMAND …` after it, to run something beside the task."""

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

        run_inside(read(f"{sys.argv[1]}/launch.json"), sys.argv[2:])
    from mandor.engines.shim.supervisor import supervise

    supervise(sys.argv[1])


if __name__ == "__main__":
    main()
