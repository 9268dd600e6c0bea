"""A private dockerd: own socket, own data, own network and mounts, own cgroup."""

from __future__ import annotations

import json
import os
import signal
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
from tests.components.enclosure import Enclosure, fetch

READY_SECONDS = 60.0


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


class Docker(RunningDocker):
    """A dockerd of the tests' own; `stop`, `kill`, `pause` and `start` are for tests of bad luck."""

    def __init__(self, binary: Path, folder: Path, options: Sequence[str] = ()) -> None:
        super().__init__(client_beside(binary), folder / "docker.sock")
        self.folder = folder
        self.enclosure = Enclosure(folder)
        self.process: subprocess.Popen[bytes] | None = None
        self._binary, self._options = binary, options

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
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.enclosure.command(words),
                env=os.environ | environment("docker"),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self.answers:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd is not ready:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """As a service manager does."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def kill(self) -> None:
        """`kill -9`, and wait for the containerd it leaves: it ends by itself a moment later."""
        assert self.process is not None
        containerd = self._containerd()
        self.process.kill()
        self.process.wait(60)
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

    def pause(self) -> None:
        """It hangs: connections are taken, nothing answers."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Everything it ran ends, and nothing of it is left on the machine."""
        if self.process is not None and self.process.poll() is None:
            self.resume()
            with suppress(AssertionError, subprocess.TimeoutExpired):
                left = self.cli("ps", "--all", "--quiet").split()
                if left:
                    self.cli("rm", "--force", "--volumes", *left)
            self.stop()
        self._end_shims()
        self.enclosure.close()
        remove_cgroups(self.cgroup)

    def _end_shims(self) -> None:
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
    folder.mkdir(parents=True, exist_ok=True)
    docker = Docker(binary, folder, options)
    try:
        docker.start()
    except BaseException:
        docker.close()
        raise
    return docker
