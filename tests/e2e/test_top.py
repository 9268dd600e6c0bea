"""`mandor top` in a real terminal, against a real dev cluster."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.e2e.cluster import eventually
from tests.e2e.test_cli_dev import MANDOR, dev, mandor

SPEAKER = "name: speaker\nreplicas: 2\ncommand: [sh, -c, 'echo selamat; exec sleep 1000']\nstop: {grace: 1s}\n"
TOO_LARGE = "name: giant\ncommand: [sleep, '1000']\nresources: {memory: 500Ti}\n"
PATIENCE = 60.0


class Terminal:
    """A program in a terminal of 80 by 24, and what it has written."""

    def __init__(self, folder: Path, *words: str, **env: str) -> None:
        self._fd, inside = pty.openpty()
        ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MANDOR_", "NO_COLOR"))}
        self.program = subprocess.Popen(
            ["setsid", "--ctty", str(MANDOR), *words],
            cwd=folder,
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env={**clean, "TERM": "xterm-256color", **env},
        )
        os.close(inside)
        self.written = b""

    def read(self, seconds: float = 0.2) -> None:
        """What it writes within this time; a terminal that is never read would stop it."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and select.select([self._fd], [], [], left)[0]:
            try:
                self.written += os.read(self._fd, 65536)
            except OSError:  # the other end is gone
                return

    def shows(self, text: str) -> None:
        """From the last key on."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.written:
            assert time.monotonic() < deadline, (text, self.written[-4000:])
            self.read()

    def press(self, keys: str) -> None:
        self.read(0.1)
        self.written = b""
        os.write(self._fd, keys.encode())

    def type(self, sign: str, text: str) -> None:
        self.press(sign)
        self.shows({":": "view: nodes", "/": "ext, or"}[sign])  # the cursor stands on the first letter
        os.write(self._fd, f"{text}\r".encode())

    def repeats(self, keys: str, text: str) -> None:
        """Type it again until it is answered: what a shell is told before it has the terminal is lost."""
        deadline = time.monotonic() + PATIENCE
        while text.encode() not in self.written:
            assert time.monotonic() < deadline, (text, self.written[-4000:])
            os.write(self._fd, keys.encode())
            self.read(2.0)

    def ends(self) -> int:
        deadline = time.monotonic() + PATIENCE
        while self.program.poll() is None:
            assert time.monotonic() < deadline, self.written[-2000:]
            self.read()
        return self.program.returncode

    def close(self) -> None:
        self.program.kill()
        self.program.wait()
        os.close(self._fd)


@contextmanager
def terminal(folder: Path, *words: str, **env: str) -> Iterator[Terminal]:
    opened = Terminal(folder, *words, **env)
    try:
        yield opened
    finally:
        opened.close()


@pytest.mark.req("S2-10", "S0-35")
def test_an_operator_looks_around_in_a_terminal(tmp_path: Path) -> None:
    with dev(tmp_path):
        eventually("the node is ready", lambda: "Ready" in mandor(tmp_path, "get", "nodes").stdout)
        assert mandor(tmp_path, "apply", "-f", "-", "--wait", given=SPEAKER).returncode == 0
        try:
            with terminal(tmp_path, "top") as screen:
                screen.shows("speaker-1")
                screen.shows("Running")
                assert mandor(tmp_path, "apply", "-f", "-", given=TOO_LARGE).returncode == 0
                screen.shows("giant-0")

                screen.type("/", "giant")
                screen.shows("instances (1)")
                screen.press("e")
                screen.shows("smallest change")
                screen.press("\x1b")
                screen.shows("giant-0")
                screen.press("\x1b")
                screen.shows("speaker-0")

                screen.type(":", "logs speaker-0")
                screen.shows("selamat")
                screen.press("\x1b")
                screen.shows("speaker-0")

                screen.type(":", "wl")
                screen.shows("workloads (2)")
                screen.press("\x04")
                screen.shows("delete workload default/giant?")
                screen.press("y")
                screen.shows("workloads (1)")

                screen.press("\r")
                screen.shows("of workload default/speaker")
                screen.press("s")
                screen.shows("type exit to return")
                screen.repeats("echo sh''ell-works\r", "shell-works")
                screen.press("exit\r")
                screen.shows("speaker-0")

                screen.type(":", "q")
                assert screen.ends() == 0
            with terminal(tmp_path, "top", "nodes", NO_COLOR="1") as plain:
                plain.shows("Ready")
                assert not re.search(rb"\x1b\[[0-9;]*\b[34][0-8](;|m)", plain.written), "not the terminal's own"
                plain.press("q")
                assert plain.ends() == 0
        finally:
            mandor(tmp_path, "delete", "workload", "speaker", "--wait", "--timeout", "60s")


def test_without_a_terminal_or_a_server_it_reports_it(tmp_path: Path) -> None:
    told = mandor(tmp_path, "top")
    assert told.returncode == 2
    assert "top requires a terminal" in told.stderr
    with terminal(tmp_path, "top", "--server", "http://127.0.0.1:9") as screen:
        assert screen.ends() == 1
        assert b"no server responds" in screen.written
