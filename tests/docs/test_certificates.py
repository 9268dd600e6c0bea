"""The OpenSSL section of the guide about certificates, typed in one shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.components.ports import free_port
from tests.docs.text import ROOT, blocks

SECTION = "Make them with OpenSSL"
SECONDS_MOST = 120


@pytest.mark.timeout(180)
def test_the_commands_that_make_certificates_work(tmp_path: Path) -> None:
    found = [each for each in blocks(ROOT / "docs/guides/certificates.md") if each.section == SECTION]
    script = "\n".join(["set -euo pipefail", *(each.text for each in found if each.language == "sh"), "echo the end"])
    kept = {key: value for key, value in os.environ.items() if not key.startswith("MANDOR_")}
    environ = kept | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "TLS_DIR": str(tmp_path / "tls"),
        "API_PORT": str(free_port()),
    }
    shell = subprocess.Popen(
        ["bash", "-c", script],
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=SECONDS_MOST)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    logs = [path.read_text()[-2000:] for path in (tmp_path / "tls").glob("*.log")]
    assert shell.returncode == 0, (said[-3000:], *logs)
    assert said.endswith("the end\n")
