"""A line that says what is waited for: on a terminal, after a second, and never on stdout."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from time import sleep

import pytest

from mandor.cli.progress import Progress
from tests.unit.cli.conftest import LiveApi, Mandor
from tests.unit.cli.test_looking import node
from tests.unit.cli.web import Answering, serving

COMMAND = [sys.executable, "-m", "mandor.cli.main", "get", "nodes", "-o", "json"]


class _Waiting(Answering):
    released = threading.Event()

    def do_GET(self) -> None:
        assert self.released.wait(60)
        self.answer()


@pytest.fixture
def waiting() -> Iterator[str]:
    _Waiting.released.clear()
    with serving(_Waiting) as url:
        yield url


def test_a_slow_answer_is_shown_on_a_terminal_and_wiped_away(waiting: str) -> None:
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "--server", waiting], stdout=subprocess.PIPE, stderr=terminal, text=True
    ) as command:
        os.close(terminal)
        shown = ""
        while "waiting for the server: GET /v1/nodes" not in shown:
            shown += os.read(controller, 65536).decode()
        _Waiting.released.set()
        printed, _ = command.communicate(timeout=60)
    with suppress(OSError):  # EIO: the last writer of the terminal is gone
        while more := os.read(controller, 65536):
            shown += more.decode()
    os.close(controller)
    assert shown.endswith("\r\x1b[K")
    assert (command.returncode, printed) == (0, '{\n  "items": []\n}\n')


def test_nothing_is_shown_where_no_terminal_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mandor.cli.progress.SILENT_SECONDS", 0.0)
    for terminal in (True, False):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal, raising=False)
        with Progress("a slow step"):
            sleep(0.5)
        assert ("a slow step" in capsys.readouterr().err) == terminal


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
