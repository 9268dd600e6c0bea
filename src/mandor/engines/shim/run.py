"""Program of the supervisor: `python -I -S run.py FOLDER`; with `SUPERVISOR COMMAND …`, a command beside the task.

`run.py mounts` and `run.py view` exit with 0 if tasks can have mounts, or namespaces; `run.py network IP NFT RULES`
exits with 0 if they can have their own network.
"""

import os
import sys


def main() -> None:
    # Isolated and without site, only the standard library is on the path; the package is added.
    root = os.path.abspath(__file__)
    for _ in range(4):
        root = os.path.dirname(root)
    sys.path.append(root)
    if sys.argv[1] == "network":
        from mandor.engines.shim import network

        sys.exit(0 if network.can_make(*sys.argv[2:]) else 1)
    if len(sys.argv) > 2:
        from mandor.engines.shim.entry import run_inside

        run_inside(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    if sys.argv[1] in {"mounts", "view"}:
        from mandor.engines.shim import mounts, view

        sys.exit(0 if (mounts.can_make() if sys.argv[1] == "mounts" else view.can_make()) else 1)
    from mandor.engines.shim.supervisor import supervise

    supervise(sys.argv[1])


if __name__ == "__main__":
    main()
