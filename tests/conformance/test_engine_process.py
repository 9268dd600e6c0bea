"""ProcessEngine keeps the promises of an engine: at each level, with and without cgroups, with mounts or links."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from mandor.engines.base import Engine, Launch
from mandor.engines.process import ProcessEngine
from mandor.testing.engine import EngineSuite

ROOT = os.geteuid() == 0
"""What other users can have depends on the machine, so nothing is pinned for them."""
LEAST = frozenset(["events", "exec", "links", "logs", "signal", "stats", "user"]) if ROOT else None
EXTRAS = LEAST and LEAST | {"confined", "mounts", "network", "overlay", "resolver", "sandbox", "tmpfs"}
LIMITS = frozenset({"cpu", "memory", "processes"}) if ROOT else None

SERVE = """
import http.server, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[2].encode() + b"\\n")
http.server.HTTPServer(("", int(sys.argv[1])), Page).serve_forever()
"""
FETCH = "import sys, urllib.request as r; print(r.urlopen(f'http://127.0.0.1:{sys.argv[1]}/').read().decode(), end='')"


class ProcessSuite(EngineSuite):
    """Programs that a node has, in place of the programs of the suite's image."""

    def serves(self, port: int, text: str, **parts: Any) -> Launch:
        return self.launch(command=("/usr/bin/python3", "-c", SERVE, str(port), text), **parts)

    def fetches(self, port: int, **parts: Any) -> Launch:
        fetch = shlex.join(["/usr/bin/python3", "-c", FETCH, str(port)])
        return self.shell(f"until {fetch} 2>/dev/null; do sleep 0.1; done", **parts)


class TestProcessEngine(ProcessSuite):
    limits = LIMITS
    extras = EXTRAS

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory)


class TestProcessEngineRestricted(ProcessSuite):
    level = "restricted"
    limits = LIMITS
    extras = EXTRAS

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory)


class TestProcessEnginePrivileged(ProcessSuite):
    level = "privileged"
    limits = LIMITS
    extras = EXTRAS

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory)


class TestProcessEngineWithoutCgroupsAndMounts(EngineSuite):
    """As on a machine that has none, or for a user who may not make any."""

    limits = frozenset()
    extras = LEAST

    @pytest.fixture(autouse=True)
    def folders_can_be_passed(self, tmp_path: Path) -> None:
        """Folders above the volume with the modes of the agent instead of those of pytest: without a view, a link leads
        through them."""
        for folder in (tmp_path, *tmp_path.parents[:3]):
            if "pytest" in str(folder):
                folder.chmod(0o711)

    def make_engine(self, directory: Path) -> Engine:
        return ProcessEngine(directory, limits=False, mounts=False)
