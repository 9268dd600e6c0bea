"""A private containerd: own socket, own data, own network and mounts, own cgroups."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from pathlib import Path

from scripts.components import HOME, environment
from tests.components.cgroups import remove_cgroups
from tests.components.daemon import Daemon
from tests.components.image import busybox_image

PAUSE = "mandor.test/pause:1"
NAMESPACE = "k8s.io"
"""Where the runtime interface keeps its containers."""


class Containerd(Daemon):
    program, client = "containerd", "ctr"
    store = "root"
    volatile = ("state", "containerd.sock")

    def __init__(self, binary: Path, folder: Path) -> None:
        super().__init__(folder)
        self.binary = binary

    @property
    def socket(self) -> Path:
        return self.folder / "containerd.sock"

    @property
    def environ(self) -> dict[str, str]:
        """runc comes with docker's packages."""
        folders = [str(self.binary.parent), environment("docker").get("PATH", ""), os.environ.get("PATH", os.defpath)]
        return os.environ | environment("docker") | {"PATH": ":".join(folders)}

    def start(self) -> None:
        self._configure()
        command = self.enclosure.command([self.binary, "--config", self.folder / "config.toml"])
        self.launch(command, lambda: self.run("version").returncode == 0)

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
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        network = {"cniVersion": "0.4.0", "name": "mandor", "plugins": [bridge, ports]}
        (self.folder / "cni" / "10-mandor.conflist").write_text(json.dumps(network))

    def load(self, archive: bytes) -> None:
        self.cli("images", "import", "-", data=archive)

    def furnish(self) -> None:
        self.load(busybox_image())
        self.load(busybox_image(PAUSE, config={"Cmd": ["tail", "-f", "/dev/null"]}))

    def _command(self, *words: str) -> list[str]:
        inside = self.enclosure.command([self.binary.with_name("ctr"), "--address", self.socket])
        return [*inside, "--namespace", NAMESPACE, *words]

    async def dial(
        self, host: str, port: int, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to something that listens inside."""
        connected = await asyncio.to_thread(self.enclosure.connect, host, port)
        return await asyncio.open_connection(sock=connected, ssl=context)

    def end_all(self) -> None:
        for task in self.cli("tasks", "list", "--quiet").split():
            self.cli("tasks", "kill", "--signal", "SIGKILL", task)

    def close(self) -> None:
        super().close()
        remove_cgroups(NAMESPACE)


def start_containerd(binary: Path, folder: Path) -> Containerd:
    """The caller closes it."""
    containerd = Containerd(binary, folder)
    containerd.open(containerd.start)
    return containerd
