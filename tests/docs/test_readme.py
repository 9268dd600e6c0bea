"""What the README and the tutorial tell a newcomer to type, typed into a cluster that `make dev` started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.ports import free_port
from tests.docs.text import ROOT, blocks

PAGES = {
    "README.md": "hello-0",
    "README.id.md": "hello-0",
    "docs/tutorial/first-cluster.md": "hello-0",
    "docs/tutorial/web-application.md": "Welcome, says shop-",
}
"""Pages that newcomers type, with a text that they see."""
PATIENCE_SECONDS = 90.0
MANDOR = Path(sys.executable).with_name("mandor")


def environ(**more: str) -> dict[str, str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("MANDOR_SERVER", "MANDOR_TOKEN"))}
    return clean | {"PATH": f"{MANDOR.parent}:{os.environ['PATH']}"} | more


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """`make dev`, as a person starts it, on a free port: its URL and what it printed."""
    address, data, said = f"127.0.0.1:{free_port()}", tmp_path / "data", tmp_path / "said"
    command = ["make", "dev", f"BIN={MANDOR.parent}", f"ARGS=--data {data} --listen {address}"]
    with said.open("wb") as out:
        # No set-up in the midst of the tests: the environment that runs them is the one to use.
        process = subprocess.Popen(
            [*command, "-o", "setup", "-o", ".venv/.ready"],
            cwd=ROOT,
            env=environ(),
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        _wait_ready(f"http://{address}", process, said)
        yield f"http://{address}", said
        os.killpg(process.pid, signal.SIGINT)  # what Ctrl-C does: make and its child both hear it
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        subprocess.run([MANDOR, "dev", "--stop", "--data", data], env=environ(), timeout=60, check=False)


@pytest.mark.slow
@pytest.mark.timeout(480)
@pytest.mark.req("S0-1", "S0-4", "S2-1", "S2-2", "S2-3", "S2-4", "S2-11")
@pytest.mark.parametrize("page", PAGES)
def test_a_newcomer_can_type_the_page(page: str, dev: tuple[str, Path], tmp_path: Path) -> None:
    url, said = dev
    script = "\n".join(block.text for block in blocks(ROOT / page) if block.mark == "cluster")
    script = script.replace(".venv/bin/mandor", str(MANDOR))
    done = subprocess.run(
        ["bash", "-euxo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environ(MANDOR_SERVER=url, TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert PAGES[page] in done.stdout
    assert url in said.read_text()
    assert "apply -f examples/hello.yaml" in said.read_text(), "no next command to try"


def _wait_ready(url: str, process: subprocess.Popen[bytes], said: Path) -> None:
    """Ready means that the node has joined, too: what the README says next needs it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, f"`make dev` ended:\n{said.read_text()}"
        try:
            with urllib.request.urlopen(f"{url}/v1/nodes", timeout=5) as answer:
                if b'"node"' in answer.read():
                    return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"`make dev` was not ready:\n{said.read_text()}")
