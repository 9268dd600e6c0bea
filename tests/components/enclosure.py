"""Namespaces of a daemon's own: its bridges, packet filters and mounts are nobody else's, and end with it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

_HOLDER = """
import ctypes, fcntl, os, signal, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
NEWNET, NEWNS, PRIVATE, RECURSIVE, DEATH_SIGNAL = 0x40000000, 0x00020000, 1 << 18, 1 << 14, 1
libc.prctl(DEATH_SIGNAL, signal.SIGKILL)
def must(failed):
    if failed:
        sys.exit("no namespaces of its own: " + os.strerror(ctypes.get_errno()))
must(libc.unshare(NEWNET | NEWNS))
must(libc.mount(b"none", b"/", None, PRIVATE | RECURSIVE, None))
for folder in (b"/run", b"/dev/shm"):
    must(libc.mount(b"tmpfs", folder, b"tmpfs", 0, None))
etc = sys.argv[1].encode()
layers = b"lowerdir=/etc,upperdir=" + etc + b"/upper,workdir=" + etc + b"/work"
for name in (b"/upper", b"/work"):
    os.makedirs(etc + name, exist_ok=True)
must(libc.mount(b"overlay", b"/etc", b"overlay", 0, layers))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
print("ready", flush=True)
signal.pause()
"""


_CONNECT = """
import socket, sys
address, port, descriptor = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with socket.create_connection((address, port), 20) as made, socket.socket(fileno=descriptor) as back:
    made.settimeout(None)
    socket.send_fds(back, [b"!"], [made.fileno()])
"""

_LISTEN = """
import socket, sys
address, descriptor = sys.argv[1], int(sys.argv[2])
with socket.create_server((address, 0)) as made, socket.socket(fileno=descriptor) as back:
    socket.send_fds(back, [b"!"], [made.fileno()])
"""


def fetch(address: str, port: int) -> str:
    """The page at `/`; empty while nobody answers."""
    return subprocess.run(_fetching(address, port), capture_output=True, text=True, check=True).stdout.rstrip("\n")


def _fetching(address: str, port: int) -> list[str]:
    script = "import sys, urllib.request as u\n"
    script += "try: print(u.urlopen(sys.argv[1], timeout=10).read().decode())\nexcept OSError: pass"
    return [sys.executable, "-c", script, f"http://{address}:{port}/"]


class Enclosure:
    """A network and a mount namespace that a small process keeps open, with a /run, a /dev/shm and an /etc of its own.

    Everything else on the machine is shared.
    """

    def __init__(self, folder: Path) -> None:
        self._etc = folder / "etc"
        self._holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, self._etc], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        assert self._holder.stdout is not None
        if self._holder.stdout.readline() != "ready\n":
            raise RuntimeError("this machine gives no namespaces of their own to tests")

    def write(self, path: str, text: str, *, append: bool = False) -> None:
        """A file of /etc, seen inside only."""
        before = Path("/etc", path).read_text() if append and Path("/etc", path).exists() else ""
        script = "import os, sys; os.makedirs(os.path.dirname(sys.argv[1]), exist_ok=True); "
        script += "open(sys.argv[1], 'w').write(sys.argv[2])"
        self.run([sys.executable, "-c", script, f"/etc/{path}", before + text])

    def add_libraries(self, folders: Sequence[str]) -> None:
        """For programs that start others with an environment of their own, in which LD_LIBRARY_PATH is missing."""
        if folders:
            if Path("/var/cache/ldconfig").is_dir():
                self.run(["mount", "-t", "tmpfs", "none", "/var/cache/ldconfig"])
            self.write("ld.so.conf.d/mandor-test.conf", "\n".join(folders) + "\n")
            self.run([shutil.which("ldconfig") or "/sbin/ldconfig", "-X"])

    def install(self, unpacked: Path) -> None:
        """Inside, unpacked packages are where they would be if they were installed."""
        self.run(["mount", "-t", "overlay", "overlay", "-o", f"lowerdir={unpacked / 'usr'}:/usr", "/usr"])
        if (unpacked / "etc").is_dir():
            self.run(["cp", "--archive", f"{unpacked / 'etc'}/.", "/etc/"])

    def own_sys(self) -> None:
        """/sys shows the network of the inside, and the cgroups of the outside as before."""
        kept = "/mnt"
        self.run(["mount", "--rbind", "/sys/fs/cgroup", kept])
        self.run(["mount", "-t", "sysfs", "sysfs", "/sys"])
        self.run(["mount", "--rbind", kept, "/sys/fs/cgroup"])
        self.run(["umount", "--recursive", kept])

    def command(self, words: Sequence[str | Path]) -> list[str]:
        """The command line that runs `words` inside."""
        inside = ["nsenter", "--net", "--mount", f"--target={self._holder.pid}", "--"]
        return [*inside, *(str(word) for word in words)]

    def run(self, words: Sequence[str | Path], *, environ: Mapping[str, str] | None = None) -> str:
        """What it prints; it must end well."""
        done = subprocess.run(
            self.command(words),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=dict(os.environ) | dict(environ or {}),
        )
        assert done.returncode == 0, f"{' '.join(str(word) for word in words)}: {done.stderr.strip()}"
        return done.stdout

    def fetch(self, address: str, port: int) -> str:
        """The page at `/`, as seen from inside."""
        return self.run(_fetching(address, port)).rstrip("\n")

    def connect(self, address: str, port: int) -> socket.socket:
        """A connection to somebody inside, usable from outside; call it in a thread, which waits."""
        return self._socket(_CONNECT, address, str(port))

    def listen(self, address: str) -> socket.socket:
        """A socket that those inside can connect to, at any port, and that is accepted from outside."""
        return self._socket(_LISTEN, address)

    def _socket(self, script: str, *words: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            subprocess.run(
                self.command([sys.executable, "-c", script, *words, str(theirs.fileno())]),
                pass_fds=[theirs.fileno()],
                timeout=60,
                check=True,
            )
            _, (found, *_), _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=found)

    def _inside(self) -> list[int]:
        """Every process that has this network."""
        network = os.stat(f"/proc/{self._holder.pid}/ns/net").st_ino
        found = []
        for name in os.listdir("/proc"):
            with suppress(OSError):
                if name.isdecimal() and os.stat(f"/proc/{name}/ns/net").st_ino == network:
                    found.append(int(name))
        return [each for each in found if each != self._holder.pid]

    def kill(self) -> None:
        """Everything that runs inside, and what that began in namespaces of its own."""
        found = [psutil.Process(pid) for pid in self._inside() if psutil.pid_exists(pid)]
        for process in found:
            with suppress(psutil.Error):
                for each in (*process.children(recursive=True), process):
                    with suppress(psutil.Error):
                        each.kill()

    def close(self) -> None:
        """With everything that still runs inside."""
        with suppress(OSError):
            for process in self._inside():
                with suppress(OSError):
                    os.kill(process, signal.SIGKILL)
        self._holder.kill()
        self._holder.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()
