"""Puts `nft`, `ip` and `haproxy` on PATH, as on a node: programs that the tests start use them."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from scripts.components import environment, find


def put_on_path(folder: Path) -> None:
    """Write a start script for each program that is missing on PATH, with the libraries of the component."""
    for name, component in (("nft", "nftables"), ("ip", "iproute2"), ("haproxy", "haproxy")):
        program = find(component)
        if program is None or shutil.which(name) is not None:
            continue
        libraries = environment(component).get("LD_LIBRARY_PATH", "")
        script = folder / name
        script.write_text(
            f'#!/bin/sh\nLD_LIBRARY_PATH={shlex.quote(libraries)} exec {shlex.quote(str(program))} "$@"\n'
        )
        script.chmod(0o755)
    os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
