"""A private dockerd: own socket, own data, own network and mounts, own cgroup."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from mandor.engines.docker.engine import find_socket
from scripts.components import environment
from tests.components.cgroups import remove_cgroups
from tests.components.daemon import READY_SECONDS, Daemon
from tests.components.enclosure import fetch
from tests.components.image import busybox_image


class RunningDocker:
    """Somebody's dockerd: tests use names and labels of their own, and take away what they made."""

    def __init__(self, client: Path, socket: Path) -> None:
        self._client, self.socket = client, socket

    def cli(self, *words: str, data: bytes | None = None) -> str:
        """The docker command, as its users know it."""
        done = subprocess.run(self._command(*words), input=data, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.decode().strip()}"
        return done.stdout.decode().strip()

    def _command(self, *words: str) -> list[str]:
        return [str(self._client), f"--host=unix://{self.socket}", *words]

    @property
    def answers(self) -> bool:
        return subprocess.run(self._command("version"), capture_output=True, check=False).returncode == 0

    def fetch(self, address: str, port: int) -> str:
        """The page at `/` of something it runs."""
        return fetch(address, port)

    def inspect(self, name: str) -> dict[str, Any]:
        (found,) = json.loads(self.cli("inspect", name))
        assert isinstance(found, dict)
        return found

    def close(self) -> None:
        """It goes on."""


class Docker(Daemon, RunningDocker):
    program, client = "dockerd", "docker"
    store = "data"
    volatile = ("exec", "pid", "docker.sock")

    def __init__(self, binary: Path, folder: Path, options: Sequence[str] = ()) -> None:
        Daemon.__init__(self, folder)
        RunningDocker.__init__(self, client_beside(binary), folder / "docker.sock")
        self._binary, self._options = binary, options

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | environment("docker")

    def _command(self, *words: str) -> list[str]:
        return RunningDocker._command(self, *words)

    @property
    def cgroup(self) -> str:
        return f"mandor-test-{os.getpid()}-{self.folder.name}"

    def fetch(self, address: str, port: int) -> str:
        return self.enclosure.fetch(address, port)

    def start(self) -> None:
        (self.folder / "daemon.json").write_text("{}")
        words = [
            str(self._binary),
            f"--config-file={self.folder / 'daemon.json'}",
            f"--data-root={self.folder / 'data'}",
            f"--exec-root={self.folder / 'exec'}",
            f"--pidfile={self.folder / 'pid'}",
            f"--host=unix://{self.socket}",
            f"--cgroup-parent=/{self.cgroup}",
            *self._options,
        ]
        self.launch(self.enclosure.command(words), lambda: self.answers)

    def kill(self) -> None:
        """`kill -9`, and wait for the containerd it leaves: it ends by itself a moment later."""
        containerd = self._containerd()
        super().kill()
        deadline = time.monotonic() + READY_SECONDS
        while containerd is not None and _lives(containerd) and time.monotonic() < deadline:
            time.sleep(0.05)
        for name in ("pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)

    def _containerd(self) -> int | None:
        try:
            return int((self.folder / "exec" / "containerd" / "containerd.pid").read_text())
        except (OSError, ValueError):
            return None

    def furnish(self) -> None:
        self.cli("load", data=busybox_image())

    def end_all(self) -> None:
        left = self.cli("ps", "--all", "--quiet").split()
        if left:
            self.cli("rm", "--force", "--volumes", *left)

    def close(self) -> None:
        super().close()
        remove_cgroups(self.cgroup)

    def sweep(self) -> None:
        """A dockerd that was killed in the middle of a start forgets the shim it had begun."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(str(self.folder / "exec") in word for word in process.cmdline()):
                    process.kill()


def client_beside(binary: Path) -> Path:
    beside = binary.parent.parent / "bin" / "docker"
    return beside if beside.exists() else Path("docker")


def _lives(pid: int) -> bool:
    """A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def find_running(binary: Path) -> RunningDocker | None:
    """The one that this user's docker command would use, if it answers."""
    found = RunningDocker(client_beside(binary), find_socket())
    return found if found.socket.exists() and found.answers else None


def start_docker(binary: Path, folder: Path, *, options: Sequence[str] = ()) -> Docker:
    """The caller closes it."""
    docker = Docker(binary, folder, options)
    docker.open(docker.start)
    return docker
