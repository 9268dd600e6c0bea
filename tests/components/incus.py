"""A private incusd: own socket, own data, own network and mounts."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import tarfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from scripts.components import HOME
from tests.components.enclosure import Enclosure
from tests.components.image import busybox_layer

READY_SECONDS = 60.0
IMAGE = "mandor-busybox"
BRIDGE = "10.78.0.1"

INIT = b"""#!/bin/sh
export PATH=/bin
trap 'exit 0' TERM INT PWR
echo booting
ip link set lo up
if [ -e /sys/class/net/eth0 ]; then
  ip link set eth0 up
  udhcpc -i eth0 -s /etc/udhcpc -q -n -t 20 -T 1 >/dev/null 2>&1 &
fi
[ -x /etc/boot ] && /etc/boot &
while :; do sleep 3600 & wait $!; done
"""
DHCP = b"""#!/bin/sh
[ "$1" = bound ] && ip addr flush dev $interface && ip addr add $ip/24 dev $interface
exit 0
"""


@dataclass
class Incus:
    """A running incusd; `stop`, `kill`, `pause` and `start` are for tests of bad luck."""

    binary: Path
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    enclosure: Enclosure = field(init=False)

    def __post_init__(self) -> None:
        self.enclosure = Enclosure(self.folder)

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/unix.socket"

    @property
    def _environment(self) -> dict[str, str]:
        return dict(os.environ) | {"INCUS_DIR": str(self.folder), "HOME": str(self.folder / "home")}

    def prepare(self) -> None:
        """Once; what is unpacked is seen as if it were installed, in there only."""
        if self.binary.is_relative_to(HOME):
            self.enclosure.install(HOME / "incus")
        self.enclosure.own_sys()
        for name in ("subuid", "subgid"):
            self.enclosure.write(name, "root:1000000:1000000000\n")

    def start(self) -> None:
        daemon = "/usr/libexec/incus/incusd" if self.binary.is_relative_to(HOME) else self.binary
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.enclosure.command([daemon, "--group", "root"]),
                env=self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while self._run("query", "/1.0").returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"incusd is not ready:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.1)

    def configure(self) -> None:
        self.cli("storage", "create", "default", "dir")
        network = (f"ipv4.address={BRIDGE}/24", "ipv4.nat=false", "ipv6.address=none")
        self.cli("network", "create", "mandor0", *network)
        self.cli("profile", "device", "add", "default", "root", "disk", "path=/", "pool=default")
        self.cli("profile", "device", "add", "default", "eth0", "nic", "network=mandor0", "name=eth0")
        image = self.folder / "image.tar.gz"
        image.write_bytes(incus_image())
        self.cli("image", "import", str(image), "--alias", IMAGE)

    def cli(self, *words: str) -> str:
        done = self._run(*words)
        assert done.returncode == 0, f"incus {' '.join(words)}: {done.stderr.decode().strip()}"
        return done.stdout.decode().strip()

    def _run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        command = self.enclosure.command(["incus", *words])
        return subprocess.run(command, env=self._environment, capture_output=True, timeout=120, check=False)

    def stop(self) -> None:
        """As its service manager does: what runs in it goes on."""
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
                for name in self.cli("list", "--format", "csv", "--columns", "n").split():
                    self.cli("delete", "--force", name)
            self.stop()
        self.enclosure.close()


def start_incus(binary: Path, folder: Path) -> Incus:
    """The caller closes it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "home").mkdir()
    incus = Incus(binary, folder)
    try:
        incus.prepare()
        incus.start()
        incus.configure()
    except BaseException:
        incus.close()
        raise
    return incus


def incus_image() -> bytes:
    """Busybox with a small init, as Incus' own kind of archive."""
    about = b"architecture: x86_64\ncreation_date: 1700000000\nproperties: {description: busybox, os: busybox}\n"
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        _add(tar, "metadata.yaml", about, 0o644)
        with tarfile.open(fileobj=io.BytesIO(busybox_layer())) as layer:
            for member in layer.getmembers():
                content = layer.extractfile(member) if member.isfile() else None
                member.name = f"rootfs/{member.name}"
                tar.addfile(member, content)
        for folder in ("sbin", "root", "run"):
            entry = tarfile.TarInfo(f"rootfs/{folder}")
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        _add(tar, "rootfs/sbin/init", INIT, 0o755)
        _add(tar, "rootfs/etc/udhcpc", DHCP, 0o755)
    return gzip.compress(out.getvalue(), 1)


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
