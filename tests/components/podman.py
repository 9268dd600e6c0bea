"""A private podman service, rootful or rootless: own socket, own storage, own network and mounts."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from scripts.components import environment
from tests.components.cgroups import remove_empty
from tests.components.enclosure import Enclosure

READY_SECONDS = 60.0
USER, USER_ID = "mandor-test", 64_321
"""Known inside the enclosure only."""


@dataclass
class Podman:
    binary: Path
    folder: Path
    enclosure: Enclosure
    rootless: bool = False
    process: subprocess.Popen[bytes] | None = None

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
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command("system", "service", "--time=0", f"unix://{self.socket}"),
                env=self.environ,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd="/",
            )
        deadline = time.monotonic() + READY_SECONDS
        while not self.socket.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"podman is not ready:\n{(self.folder / 'log').read_text()[-3000:]}")
            time.sleep(0.05)

    def cli(self, *words: str, data: bytes | None = None) -> str:
        done = subprocess.run(
            self._command(*words),
            input=data,
            env=self.environ,
            capture_output=True,
            timeout=120,
            check=False,
            cwd="/",
        )
        assert done.returncode == 0, f"podman {' '.join(words)}: {done.stderr.decode().strip()}"
        return done.stdout.decode().strip()

    def _command(self, *words: str) -> list[str]:
        become: Sequence[str] = ()
        if self.rootless:
            become = ("setpriv", f"--reuid={USER_ID}", f"--regid={USER_ID}", "--clear-groups", "--")
        return self.enclosure.command([*become, self.binary, *words])

    def stop(self) -> None:
        """What it runs goes on: podman has no daemon that containers depend on."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.cli("rm", "--force", "--all", "--time", "0")
        self.stop()
        _end_inside(self.folder)
        self.enclosure.close()
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
    folder.mkdir(parents=True, exist_ok=True)
    podman = Podman(binary, folder, Enclosure(folder), rootless)
    try:
        podman.set_up()
        podman.start()
    except BaseException:
        podman.close()
        raise
    return podman
