"""A private dockerd: own socket, own data, own network and mounts, own cgroup."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scripts.components import environment
from tests.components.cgroups import remove_cgroups
from tests.components.enclosure import Enclosure

READY_SECONDS = 60.0


@dataclass
class Docker:
    """A running dockerd; `stop`, `kill`, `pause` and `start` are for tests of bad luck."""

    binary: Path
    folder: Path
    options: Sequence[str] = ()
    enclosure: Enclosure = field(default_factory=Enclosure)
    process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> Path:
        return self.folder / "docker.sock"

    @property
    def cgroup(self) -> str:
        return f"mandor-test-{os.getpid()}-{self.folder.name}"

    def start(self) -> None:
        (self.folder / "daemon.json").write_text("{}")
        words = [
            self.binary,
            f"--config-file={self.folder / 'daemon.json'}",
            f"--data-root={self.folder / 'data'}",
            f"--exec-root={self.folder / 'exec'}",
            f"--pidfile={self.folder / 'pid'}",
            f"--host=unix://{self.socket}",
            f"--cgroup-parent=/{self.cgroup}",
            *self.options,
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
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while subprocess.run(self._command("version"), capture_output=True, check=False).returncode:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"dockerd is not ready:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)

    def cli(self, *words: str, data: bytes | None = None) -> str:
        """The docker command, as its users know it."""
        done = subprocess.run(self._command(*words), input=data, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr.decode().strip()}"
        return done.stdout.decode().strip()

    def _command(self, *words: str) -> list[str]:
        client = self.binary.parent.parent / "bin" / "docker"
        return [str(client if client.exists() else "docker"), f"--host=unix://{self.socket}", *words]

    def stop(self) -> None:
        """As a service manager does."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def kill(self) -> None:
        """`kill -9`, and wait for the containerd it leaves: it ends by itself a moment later."""
        assert self.process is not None
        children = self._containerd()
        self.process.kill()
        self.process.wait(60)
        deadline = time.monotonic() + READY_SECONDS
        while children is not None and Path(f"/proc/{children}").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(FileNotFoundError):
            (self.folder / "pid").unlink()

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
        self.enclosure.close()
        remove_cgroups(self.cgroup)

    def inspect(self, name: str) -> dict[str, object]:
        (found,) = json.loads(self.cli("inspect", name))
        assert isinstance(found, dict)
        return found


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
