"""A private containerd: own socket, own data, own network and mounts, own cgroups."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scripts.components import HOME, environment
from tests.components.cgroups import remove_cgroups
from tests.components.enclosure import Enclosure

READY_SECONDS = 60.0
PAUSE = "mandor.test/pause:1"
NAMESPACE = "k8s.io"
"""Where the runtime interface keeps its containers."""


@dataclass
class Containerd:
    """A running containerd; `stop`, `kill`, `pause` and `start` are for tests of bad luck."""

    binary: Path
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    enclosure: Enclosure = field(init=False)

    def __post_init__(self) -> None:
        self.enclosure = Enclosure(self.folder)

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def cgroup(self) -> str:
        return f"mandor-test-{os.getpid()}-{self.folder.name}"

    def start(self) -> None:
        self._configure()
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.enclosure.command([self.binary, "--config", self.folder / "config.toml"]),
                env=os.environ | environment("docker") | self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._wait_ready()

    @property
    def _environment(self) -> dict[str, str]:
        """runc comes with docker's packages."""
        folders = [str(self.binary.parent), environment("docker").get("PATH", ""), os.environ.get("PATH", os.defpath)]
        return {"PATH": ":".join(folders)}

    def _configure(self) -> None:
        (self.folder / "cni").mkdir(parents=True, exist_ok=True)
        unpacked = HOME / "containerd" / "usr" / "lib" / "cni"
        programs = unpacked if unpacked.is_dir() else Path("/usr/lib/cni")
        (self.folder / "config.toml").write_text(f"""version = 2
root = "{self.folder}/root"
state = "{self.folder}/state"
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  enable_unprivileged_ports = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{programs}"
    conf_dir = "{self.folder}/cni"
""")
        bridge = {
            "type": "bridge",
            "bridge": "mandor0",
            "isGateway": True,
            "ipMasq": False,
            "ipam": {
                "type": "host-local",
                "dataDir": f"{self.folder}/ipam",
                "ranges": [[{"subnet": "10.79.0.0/24"}]],
            },
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = {"cniVersion": "0.4.0", "name": "mandor", "plugins": [bridge, ports]}
        (self.folder / "cni" / "10-mandor.conflist").write_text(json.dumps(network))

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while subprocess.run(self._command("version"), capture_output=True, check=False).returncode:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"containerd is not ready:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)

    def ctr(self, *words: str, data: bytes | None = None) -> str:
        """containerd's own command."""
        done = subprocess.run(self._command(*words), input=data, capture_output=True, timeout=120, check=False)
        assert done.returncode == 0, f"ctr {' '.join(words)}: {done.stderr.decode().strip()}"
        return done.stdout.decode().strip()

    def load(self, archive: bytes) -> None:
        self.ctr("images", "import", "-", data=archive)

    def _command(self, *words: str) -> list[str]:
        inside = self.enclosure.command([self.binary.with_name("ctr"), "--address", self.socket])
        return [*inside, "--namespace", NAMESPACE, *words]

    async def dial(
        self, host: str, port: int, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to something that listens inside."""
        connected = await asyncio.to_thread(self.enclosure.connect, host, port)
        return await asyncio.open_connection(sock=connected, ssl=context)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

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
                for task in self.ctr("tasks", "list", "--quiet").split():
                    self.ctr("tasks", "kill", "--signal", "SIGKILL", task)
            self.stop()
        self.enclosure.close()
        remove_cgroups(NAMESPACE)


def start_containerd(binary: Path, folder: Path) -> Containerd:
    """The caller closes it."""
    folder.mkdir(parents=True, exist_ok=True)
    containerd = Containerd(binary, folder)
    try:
        containerd.start()
    except BaseException:
        containerd.close()
        raise
    return containerd
