"""A private podman service, rootful or rootless: own socket, own storage, own network and mounts."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from scripts.components import environment
from tests.components.cgroups import remove_empty
from tests.components.daemon import STOP_SECONDS, Daemon
from tests.components.image import busybox_image

USER, USER_ID = "mandor-test", 64_321
"""Known inside the enclosure only."""


class Podman(Daemon):
    """What it runs goes on without it: podman has no daemon that containers depend on."""

    program = client = "podman"
    store = "storage"
    volatile = ("run", "runtime", "podman.sock")

    def __init__(self, binary: Path, folder: Path, *, rootless: bool = False) -> None:
        super().__init__(folder)
        self.binary, self.rootless = binary, rootless

    @property
    def socket(self) -> Path:
        return self.folder / "podman.sock"

    @property
    def environ(self) -> dict[str, str]:
        own = {
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
            "XDG_RUNTIME_DIR": str(self.folder / "runtime"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.folder / "tmp"),
        }
        return os.environ | environment("podman") | own

    def set_up(self) -> None:
        for name in ("runtime", "config", "home", "tmp", "storage", "run", "net"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "runtime").chmod(0o700)
        (self.folder / "containers.conf").write_text(self._settings())
        (self.folder / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self.folder}/storage"\nrunroot = "{self.folder}/run"\n'
        )
        self.enclosure.add_libraries(environment("podman").get("LD_LIBRARY_PATH", "").split(":"))
        self.enclosure.write("containers/policy.json", '{"default": [{"type": "insecureAcceptAnything"}]}')
        self.enclosure.write("containers/registries.conf", 'unqualified-search-registries = ["docker.io"]\n')
        if self.rootless:
            self.enclosure.write("passwd", f"{USER}:x:{USER_ID}:{USER_ID}::{self.folder}/home:/bin/sh\n", append=True)
            self.enclosure.write("group", f"{USER}:x:{USER_ID}:\n", append=True)
            for name in ("subuid", "subgid"):
                self.enclosure.write(name, f"{USER}:2000000000:65536\n")
            self.enclosure.run(["mknod", "-m", "666", self.folder / "tun", "c", "10", "200"])
            self.enclosure.run(["mount", "--bind", self.folder / "tun", "/dev/net/tun"])
            open_up(self.folder)
            for folder, names, _ in os.walk(self.folder):
                for name in ("", *names):
                    os.chown(Path(folder, name), USER_ID, USER_ID)

    def _settings(self) -> str:
        """Limits that this process may give on; the cgroup layout it finds; nothing of systemd."""
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        most = int(Path("/proc/sys/kernel/pid_max").read_text())
        processes = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        processes = most if processes == resource.RLIM_INFINITY else min(processes, most)
        found = environment("podman").get("PATH", os.environ["PATH"]).split(":")
        helpers = [str(Path(folder).parent / "lib" / "podman") for folder in found if folder.endswith("/usr/bin")]
        return f"""
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
exit_command_delay = 10
helper_binaries_dir = {[*helpers, "/usr/lib/podman", "/usr/libexec/podman"]!r}
conmon_path = {[f"{folder}/conmon" for folder in found]!r}
[engine.runtimes]
runc = {[f"{folder}/runc" for folder in found]!r}
[network]
network_backend = "netavark"
network_config_dir = "{self.folder}/net"
""".replace("'", '"')

    def start(self) -> None:
        self.socket.unlink(missing_ok=True)
        command = self._command("system", "service", "--time=0", f"unix://{self.socket}")
        self.launch(command, self.socket.exists)

    def boot(self) -> None:
        self.set_up()
        self.start()

    def _command(self, *words: str) -> list[str]:
        become: Sequence[str] = ()
        if self.rootless:
            become = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", "--")
        return self.enclosure.command([*become, self.binary, *words])

    def selves(self) -> list[psutil.Process]:
        """Without root, the first one begins another one in a user namespace and waits for it."""
        [first] = super().selves()
        return [first, *(each for each in first.children(recursive=True) if each.name() == self.program)]

    def stop(self) -> None:
        """The process in the user namespace answers for a moment longer than the one that waits for it."""
        inner = self.selves()[1:] if self.running else []
        super().stop()
        for each in psutil.wait_procs(inner, timeout=1)[1]:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        psutil.wait_procs(inner, STOP_SECONDS)

    def furnish(self) -> None:
        self.cli("load", data=busybox_image())

    def end_all(self) -> None:
        self.cli("rm", "--force", "--all", "--time", "0")

    def sweep(self) -> None:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.end_all()  # Needs no service, and there may have been none.
        _end_inside(self.folder)

    def close(self) -> None:
        super().close()
        remove_empty("libpod_parent/conmon", "libpod_parent")


def open_up(folder: Path) -> None:
    """Let others pass through the folders above, as far as they are ours."""
    for parent in (folder, *folder.parents):
        state = parent.stat()
        if state.st_uid == os.geteuid() and not state.st_mode & 0o001:
            parent.chmod(state.st_mode | 0o011)


def _end_inside(folder: Path) -> None:
    """The small processes that a rootless podman keeps for itself."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("CONTAINERS_CONF", "").startswith(f"{folder}/"):
                process.kill()


def start_podman(binary: Path, folder: Path, *, rootless: bool = False) -> Podman:
    """The caller closes it."""
    podman = Podman(binary, folder, rootless=rootless)
    podman.open(podman.set_up, podman.start)
    return podman
