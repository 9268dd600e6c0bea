"""A private incusd: own socket, own data, own network and mounts."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path

from mandor.client.image_file import open_image
from mandor.model.image import ImageFile
from scripts.components import HOME
from tests.components.cgroups import remove_cgroups
from tests.components.daemon import Daemon
from tests.components.image import busybox_layer

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


class Incus(Daemon):
    program, client = "incusd", "incus"
    store = "storage-pools"
    volatile = ("unix.socket",)

    def __init__(self, binary: Path, folder: Path) -> None:
        super().__init__(folder)
        self.binary = binary

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/unix.socket"

    @property
    def environ(self) -> dict[str, str]:
        return os.environ | {"INCUS_DIR": str(self.folder), "HOME": str(self.folder / "home")}

    def prepare(self) -> None:
        """Once a boot; what is unpacked is seen as if it were installed, in there only."""
        (self.folder / "home").mkdir(exist_ok=True)
        if self.binary.is_relative_to(HOME):
            self.enclosure.install(HOME / "incus")
        self.enclosure.own_sys()
        for name in ("subuid", "subgid"):
            self.enclosure.write(name, "root:1000000:1000000000\n")

    def start(self) -> None:
        daemon = "/usr/libexec/incus/incusd" if self.binary.is_relative_to(HOME) else self.binary
        self.launch(
            self.enclosure.command([daemon, "--group", "root"]), lambda: self.run("query", "/1.0").returncode == 0
        )

    def lose_power(self) -> None:
        names = self.cli("list", "--format", "csv", "--columns", "n").split()
        super().lose_power()
        for name in names:
            remove_cgroups(f"lxc.*.{name}")

    def boot(self) -> None:
        self.prepare()
        self.start()

    def furnish(self) -> None:
        self.cli("storage", "create", "default", "dir")
        network = (f"ipv4.address={BRIDGE}/24", "ipv4.nat=false", "ipv6.address=none")
        self.cli("network", "create", "mandor0", *network)
        self.cli("profile", "device", "add", "default", "root", "disk", "path=/", "pool=default")
        self.cli("profile", "device", "add", "default", "eth0", "nic", "network=mandor0", "name=eth0")
        image = self.folder / "image.tar.gz"
        image.write_bytes(incus_image())
        self.cli("image", "import", str(image), "--alias", IMAGE)

    def _command(self, *words: str) -> list[str]:
        return self.enclosure.command(["incus", *words])

    def end_all(self) -> None:
        for name in self.cli("list", "--format", "csv", "--columns", "n").split():
            self.cli("delete", "--force", name)


def start_incus(binary: Path, folder: Path) -> Incus:
    """The caller closes it."""
    incus = Incus(binary, folder)
    incus.open(incus.prepare, incus.start, incus.furnish)
    return incus


def incus_image() -> bytes:
    """Busybox with a small init, as Incus' own kind of archive."""
    return gzip.compress(_packed(_write_both), 1)


def incus_image_files() -> list[tuple[ImageFile, bytes]]:
    """Images that nobody has, in one file and in two: what a node is told of each, and what it gets."""
    words = [uuid.uuid4().hex[:8] for _ in range(2)]
    whole = gzip.compress(_packed(lambda tar: _write_both(tar, words[0])), 1)
    metadata = gzip.compress(_packed(lambda tar: _write_metadata(tar, words[1])), 1)
    rootfs = gzip.compress(_packed(_write_rootfs), 1)
    found = []
    for word, *parts in ((words[0], whole), (words[1], metadata, rootfs)):
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder, str(number)) for number in range(len(parts))]
            for path, content in zip(paths, parts, strict=True):
                path.write_bytes(content)
            source = open_image(paths, names=[f"loaded/{word}"])
            found.append((source.image, b"".join(source.read())))
    return found


def _packed(write: Callable[[tarfile.TarFile], None]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        write(tar)
    return out.getvalue()


def _write_both(tar: tarfile.TarFile, word: str = "busybox") -> None:
    _write_metadata(tar, word)
    _write_rootfs(tar, "rootfs/")


def _write_metadata(tar: tarfile.TarFile, word: str) -> None:
    about = f"architecture: x86_64\ncreation_date: 1700000000\nproperties: {{description: {word}, os: busybox}}\n"
    _add(tar, "metadata.yaml", about.encode(), 0o644)


def _write_rootfs(tar: tarfile.TarFile, root: str = "") -> None:
    with tarfile.open(fileobj=io.BytesIO(busybox_layer())) as layer:
        for member in layer.getmembers():
            content = layer.extractfile(member) if member.isfile() else None
            member.name = f"{root}{member.name}"
            tar.addfile(member, content)
    for folder in ("sbin", "root", "run"):
        entry = tarfile.TarInfo(f"{root}{folder}")
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(entry)
    _add(tar, f"{root}sbin/init", INIT, 0o755)
    _add(tar, f"{root}etc/udhcpc", DHCP, 0o755)


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))
