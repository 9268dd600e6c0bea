"""Confinement of tasks: detected once when the engine opens, planned for each launch."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mandor.engines.base import Launch
from mandor.engines.process.folder import UnitFolder
from mandor.engines.process.network import resolver_steps
from mandor.engines.process.seccomp import make_filter
from mandor.engines.shim.kernel import landlock_version
from mandor.errors import Invalid

Step = tuple[str, str, str]
"""A step of `shim.view`: kind, source or data, path in the view."""

NOBODY = "65534"
"""User of a confined task for which the agent gives none."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store")
KERNEL = ("/proc", "/sys", "/dev")
GUARDED = (*SYSTEM, *KERNEL, "/etc", "/boot", "/root", "/run", "/var/run")
"""Folders of the node at, above or below which a task without its own view mounts nothing, unless it is root."""
SECRETS = (
    *("shadow", "shadow-", "gshadow", "gshadow-", "sudoers", "sudoers.d", "krb5.keytab", "ssl/private", "ssh"),
    *("mandor", "kubernetes", "rancher", "docker", "wireguard", "NetworkManager/system-connections", "ppp", "cni"),
)
"""Files and folders below /etc that are hidden from confined tasks."""
RESOLV_CONF = Path("/etc/resolv.conf")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS_MOST = 32
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
READ = 1 | 4 | 8
"""Landlock rights: execute, read files, list folders."""
_LANDLOCK_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights by version of Landlock."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """Confinement that the node supports."""

    view: bool = False
    """Tasks can have their own namespaces and root file system."""
    landlock: int = 0
    """Version of Landlock in the kernel; 0: none."""
    filter: bytes = b""
    """Seccomp filter; empty: there is none for this machine type."""
    steps: tuple[Step, ...] = ()
    """Steps that every view has: system folders, devices, /proc."""
    shown: tuple[str, ...] = ()
    """Folders that every view shows, read-only."""

    resolver: tuple[Step, ...] = ()
    """Steps of the views of tasks with their own network, so that they reach a resolver."""

    def plan(
        self, launch: Launch, folder: UnitFolder, groups: Sequence[str], network: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the confinement for a launch record; `Invalid`: the node does not support what its level requires.

        `network`: the network of the instance; None: the node's."""
        if launch.level == "privileged":
            return {"confined": None, "view": None, "network": network}
        if launch.level == "restricted" and not self.view:
            raise Invalid(
                "this node cannot confine a process as the level restricted requires: the agent cannot create"
                " namespaces; run it as root, or allow user namespaces for its user"
            )
        landlock = self._landlock_in_view() if self.view else self._landlock(folder, launch)
        confined = {"level": launch.level, "filter": self.filter.hex(), "landlock": landlock}
        steps = self.resolver if network is not None else ()
        if launch.resolver is not None and self.view and RESOLV_CONF.is_file():
            own = folder.path / "resolv.conf"
            own.write_text(launch.resolver.text(), encoding="utf-8")
            own.chmod(0o644)
            steps = (("show", os.path.realpath(own), os.path.realpath(RESOLV_CONF)),)
        view = self._view(folder, groups, steps) if self.view else None
        return {"confined": confined, "view": view, "network": network}

    def _view(self, folder: UnitFolder, groups: Sequence[str], network_steps: Sequence[Step]) -> dict[str, Any]:
        work = str(folder.work)
        steps = [
            *self.steps,
            *network_steps,
            *(("show", os.path.realpath(path), path) for path in groups),
            ("own", os.path.realpath(folder.tmp), "/tmp"),  # noqa: S108 (the task's own)
            ("own", os.path.realpath(work), work),
        ]
        return {"root": os.path.realpath(folder.root), "tmp": str(folder.tmp), "steps": steps}

    def _landlock_in_view(self) -> dict[str, Any] | None:
        """Return Landlock rules for a view: only abstract sockets, for views that share the network of the node."""
        return {"attributes": [0, 0, SCOPE_ABSTRACT_SOCKETS], "rules": []} if self.landlock >= 6 else None

    def _landlock(self, folder: UnitFolder, launch: Launch) -> dict[str, Any] | None:
        if not self.landlock:
            return None
        rights = next(all_ for version, all_ in reversed(_LANDLOCK_RIGHTS.items()) if version <= self.landlock)
        attributes = [rights, 0, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS]
        size = 3 if self.landlock >= 6 else 2 if self.landlock >= 4 else 1
        read = [*self.shown, "/etc", "/proc", "/sys"]
        write = [str(folder.work), "/tmp", "/var/tmp", "/dev/shm", "/dev/pts"]  # noqa: S108 (shared, as without a view)
        write += [f"/dev/{name}" for name in (*DEVICES, "ptmx")]
        read += [mount.source for mount in launch.mounts if mount.source is not None and mount.read_only]
        write += [mount.source for mount in launch.mounts if mount.source is not None and not mount.read_only]
        rules = [(path, READ) for path in read] + [(path, rights) for path in write]
        return {"attributes": attributes[:size], "rules": rules}

    def check_target(self, path: str, launch: Launch) -> None:
        """Refuse a mount at an absolute path that would cover a system folder."""
        path = posixpath.normpath(path)
        if launch.level != "privileged" and self.view:
            # In a private view only the folders of the view itself are protected.
            if path in {"/", "/etc", *SYSTEM} or any(_within(path, each) for each in KERNEL):
                raise Invalid(f"the mount {path} would cover a system folder of the task's view; mount it elsewhere")
        elif not _is_root(launch) and any(_within(path, each) or _within(each, path) for each in GUARDED):
            raise Invalid(
                f"the mount {path} would cover a system folder, and the task does not run as root; use a relative"
                " path: it is below the task's working directory"
            )


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_root(launch: Launch) -> bool:
    if launch.user is None:
        return os.geteuid() == 0
    return str(launch.user).partition(":")[0] in {"0", "root"}


def find_confinement(*, view: bool, visible: Sequence[str] = ()) -> Confinement:
    """Detect the confinement of the node; `view`: namespaces are possible; `visible`: folders shown in addition."""
    shown = [path for path in (*SYSTEM, *visible) if os.path.isdir(path)]
    return Confinement(
        view=view,
        landlock=landlock_version(),
        filter=make_filter(),
        steps=tuple(_system_steps(shown)) if view else (),
        shown=tuple(shown),
        resolver=tuple(resolver_steps()) if view else (),
    )


def _system_steps(shown: Sequence[str]) -> Iterator[Step]:
    for path in shown:
        if os.path.islink(path) and path in SYSTEM:
            yield "link", os.readlink(path), path
        else:
            yield "show", os.path.realpath(path), path
    yield "show", "/etc", "/etc"
    for path in _mounted_below([*shown, "/etc"]):
        yield "show", path, path
    yield from _outside_links(shown)
    for name in SECRETS:
        path = f"/etc/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            yield "memory", "mode=0000,size=4k", path
        elif os.path.isfile(path) and not os.path.islink(path):
            yield "show", "/dev/null", path
    yield "proc", "", "/proc"
    yield "show", "/sys", "/sys"
    if os.path.isdir("/sys/fs/cgroup"):
        yield "memory", "mode=0755,size=1m", "/sys/fs/cgroup"
    yield from _device_steps()
    for path in ("/run", "/var", "/mnt"):
        yield "folder", "", path
    yield "link", "/tmp", "/var/tmp"  # noqa: S108 (the task's own)


def _device_steps() -> Iterator[Step]:
    yield "memory", "mode=0755,size=64k", "/dev"
    for name in DEVICES:
        if os.path.exists(f"/dev/{name}"):
            yield "device", f"/dev/{name}", f"/dev/{name}"
    yield "terminals", "newinstance,ptmxmode=0666,mode=0620", "/dev/pts"
    yield "memory", "mode=1777", "/dev/shm"  # noqa: S108 (the task's own)
    yield "link", "pts/ptmx", "/dev/ptmx"
    for name, leads in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        yield "link", f"/proc/self/{leads}", f"/dev/{name}"


def _mounted_below(folders: Sequence[str]) -> Iterator[str]:
    """Yield mount points below these folders, such as /usr/local on some machines."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in lines:
        path = line.split()[4]
        if any(path.startswith(f"{each}/") for each in folders) and "\\" not in path and os.path.exists(path):
            yield path


def _outside_links(shown: Sequence[str]) -> Iterator[Step]:
    """Yield steps for targets of links in /etc outside of the shown folders, such as systemd's resolv.conf."""
    count = 0
    for entry in sorted(os.scandir("/etc"), key=lambda each: each.name):
        if not entry.is_symlink() or entry.name in SECRETS:
            continue
        real = os.path.realpath(entry.path)
        if any(_within(real, each) for each in (*shown, "/etc", *KERNEL)) or count >= LINKS_MOST:
            continue
        try:
            plain = stat.S_ISREG(os.stat(real).st_mode) and os.stat(real).st_mode & 0o004
        except OSError:
            continue
        if plain:
            count += 1
            yield "show", real, real
