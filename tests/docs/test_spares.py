"""The first commands of the guide about spare machines, typed against the made-up machines that it names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.components.ports import free_port
from tests.docs.text import ROOT, blocks
from tests.e2e.cluster import Program, eventually

EXAMPLE = ROOT / "examples" / "baremetal"


def test_the_first_commands_prepare_and_release_a_spare(tmp_path: Path) -> None:
    first = next(each for each in blocks(ROOT / "docs/guides/spares.md") if each.language == "sh")
    nodes, api = free_port(), f"127.0.0.1:{free_port()}"
    environ = {
        "MANDOR_INVENTORY": f"http://127.0.0.1:{nodes}/nodes",
        "MANDOR_INVENTORY_EVERY": "1s",
        "MANDOR_PIPELINES": str(EXAMPLE / "pipelines.yaml"),
    }
    serve = [sys.executable, "-m", "mandor.roots.server", "--dev", "--data", str(tmp_path / "vm"), "--listen", api]
    machines = Program("machines", [sys.executable, str(EXAMPLE / "node_api.py"), str(nodes)], tmp_path / "nodes")
    server = Program("server", serve, tmp_path / "server.log", environ)
    typed = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MANDOR_SERVER": f"http://{api}",
    }

    def run(script: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-c", f"set -euo pipefail\n{script}"]
        return subprocess.run(command, env=typed, capture_output=True, text=True, timeout=120, check=False)

    try:
        machines.start()
        server.start()
        eventually("machines are listed", lambda: "bm-001" in run("mandor get nodes").stdout)
        done = run(first.text)
        assert done.returncode == 0, (done.stdout, done.stderr, server.text()[-2000:])
        assert "Released" in run("mandor spare list").stdout
    finally:
        server.kill()
        machines.kill()
