"""A line that says what is waited for: on a terminal, after a second, and never on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from mandor.cli.progress import Progress
from tests.unit.cli.conftest import LiveApi, Mandor
from tests.unit.cli.test_looking import node
from tests.unit.cli.web import Answering, serving

COMMAND = [sys.executable, "-m", "mandor.cli.main", "get", "nodes", "-o", "json"]


class _Slow(Answering):
    def do_GET(self) -> None:
        time.sleep(2.5)
        self.answer()


@pytest.fixture
def slow() -> Iterator[str]:
    with serving(_Slow) as url:
        yield url


def test_a_slow_answer_is_shown_on_a_terminal_and_wiped_away(slow: str) -> None:
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "--server", slow], stdout=subprocess.PIPE, stderr=terminal, text=True, timeout=60, check=True
    )
    os.close(terminal)
    shown = os.read(controller, 65536).decode()
    os.close(controller)
    assert "waiting for the server: GET /v1/nodes" in shown
    assert shown.endswith("\r\x1b[K")
    assert done.stdout == '{\n  "items": []\n}\n'


def test_nothing_is_shown_where_no_terminal_is(slow: str) -> None:
    done = subprocess.run([*COMMAND, "--server", slow], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


def test_a_quick_step_shows_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Progress("quick"):
        pass
    assert capsys.readouterr().err == ""


def test_a_watched_table_has_one_head_and_shows_what_is_gone(api: LiveApi, mandor: Mandor) -> None:
    api.put(node("n1"))
    command = [sys.executable, "-m", "mandor.cli.main", "get", "nodes", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[:2] == ["NAME", "PHASE"]
        assert process.stdout.readline().split()[:2] == ["n1", "Ready"]
        mandor("cordon", "n1")
        assert process.stdout.readline().split()[:2] == ["n1", "Ready,cordoned"]
        mandor("delete", "node", "n1")
        assert process.stdout.readline().rstrip().endswith("(deleted)")
        process.kill()
