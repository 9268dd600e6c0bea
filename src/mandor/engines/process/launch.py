"""Converts a launch to the record that the supervisor reads, or refuses it."""

from __future__ import annotations

import os
import pwd
import signal
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from msgspec.structs import replace

from mandor.engines.base import Launch, Mount, Unit
from mandor.engines.options import read_options
from mandor.engines.process.confinement import NOBODY, Confinement
from mandor.engines.process.folder import UnitFolder
from mandor.engines.process.hierarchy import Hierarchies
from mandor.engines.process.options import ProcessOptions
from mandor.errors import Invalid
from mandor.model.task import File

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNIT_VARIABLE = "MANDOR_UNIT"
"""Environment variable of all processes of a unit, by which leftovers of a dead supervisor are found."""
SUPERVISORS = "supervisors"
SECRET_MODE = "0400"  # noqa: S105 (a file mode)
"""Mode of a file with a secret and without a given mode."""


@dataclass(frozen=True, slots=True)
class NodeFeatures:
    """Features of the node that a launch uses."""

    trees: Hierarchies
    confinement: Confinement
    boot: str
    mounts: bool
    """Tasks without a view can have mounts, not only links."""


def with_level(launch: Launch) -> Launch:
    """Return the launch at the level of its confinement: `options.process.confine` asks for `restricted`."""
    confine = read_options("process", launch.options, ProcessOptions).confine
    return replace(launch, level="restricted") if confine else launch


def make_record(
    unit: Unit, launch: Launch, folder: UnitFolder, features: NodeFeatures, network: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the record; `Invalid`: it can never start. `network`: the network of the instance; None: the node's."""
    if launch.image:
        raise Invalid(f"the process engine runs programs of the node, not images ({launch.image})")
    argv = [*launch.command, *launch.args]
    if not argv or not argv[0]:
        raise Invalid("there is no command to run")
    options = read_options("process", launch.options, ProcessOptions)
    cwd, below = _folders(launch)
    groups = features.trees.groups(str(unit), launch)
    confined = features.confinement.plan(launch, folder, [group["path"] for group in groups], network)
    mounts = features.mounts or confined["view"] is not None
    for mount in launch.mounts:
        if mount.path.startswith("/") and mounts:
            features.confinement.check_target(mount.path, launch)
    places = {mount: str(folder.work / _place(mount, launch)) for mount in launch.mounts}
    located = {mount.variable: place for mount, place in places.items() if mount.name}
    return {
        "unit": str(unit),
        "name": launch.name,
        "namespace": launch.namespace,
        "argv": argv,
        "env": {"PATH": PATH, **launch.env, **located, UNIT_VARIABLE: str(unit)},
        "user": _user(launch),
        "runner": _runner(),
        "cwd": cwd,
        "work": str(folder.work),
        "below": below,
        "files": [
            (_inside(file.path, launch), file.content, _mode(file, launch), file.path in launch.secret_files)
            for file in launch.files
        ],
        "mounts": [
            _mount(mount, place if confined["view"] else os.path.realpath(place)) for mount, place in places.items()
        ]
        if mounts
        else [],
        **confined,
        "links": [] if mounts else [(place, _link(mount)) for mount, place in places.items()],
        "groups": groups,
        "shims": features.trees.groups(SUPERVISORS),
        "stop_signal": stop_signal(launch.stop_signal),
        "log_bytes": int(options.log_size),
        "log_files": options.log_files,
        "boot": features.boot,
    }


def _mode(file: File, launch: Launch) -> str:
    return SECRET_MODE if file.path in launch.secret_files and file.mode == File(path="x").mode else file.mode


def _user(launch: Launch) -> str | None:
    """Return the user; a confined task of a root agent without one runs as `NOBODY`, never as root."""
    if launch.user is None:
        return NOBODY if launch.level != "privileged" and os.geteuid() == 0 else None
    return str(launch.user)


def stop_signal(name: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise Invalid(f"{name!r} is not a signal") from None


def _folders(launch: Launch) -> tuple[str | None, str]:
    """Return an absolute working directory, or the part below the unit's own folder."""
    wanted = launch.working_dir or ""
    if wanted.startswith("/"):
        return wanted, ""
    return None, _relative(wanted, "working_dir")


def _inside(path: str, launch: Launch, what: str = "file") -> str:
    """Return the path of a file or volume below the unit's own folder; files of the node are never overwritten."""
    if path.startswith("/"):
        raise Invalid(
            f"the {what} {path} has an absolute path: a process shares the file system of the node, and mandor"
            " does not write there; use a relative path: it is below the task's working directory"
        )
    working_dir = launch.working_dir or ""
    if working_dir.startswith("/"):
        raise Invalid(
            f"the {what} {path} would be in {working_dir}, which belongs to the node; remove `working_dir`, or make"
            " it relative: the task then has its own folder"
        )
    return str(PurePosixPath(_relative(working_dir, "working_dir"), _relative(path, what)))


def _place(mount: Mount, launch: Launch) -> str:
    return mount.path if mount.path.startswith("/") else _inside(mount.path, launch, "volume")


def _mount(mount: Mount, place: str) -> dict[str, Any]:
    _check_source(mount)
    return {"source": mount.source, "target": place, "size": mount.size_bytes, "read_only": mount.read_only}


def _link(mount: Mount) -> str:
    """Return the target of a link to a volume, for nodes without mounts."""
    _check_source(mount)
    wanted = "a tmpfs" if mount.source is None else "a read-only volume" if mount.read_only else ""
    if mount.path.startswith("/"):
        wanted = wanted or "a volume at an absolute path"
    if wanted or mount.source is None:
        raise Invalid(
            f"the mount {mount.path}: {wanted} needs an agent that can mount, usually root; otherwise a volume is a"
            " link in the task's working directory: use a relative path"
        )
    return mount.source


def _check_source(mount: Mount) -> None:
    if mount.source is not None and not os.path.exists(mount.source):
        raise Invalid(f"the mount {mount.path}: its source {mount.source} does not exist on this node")


def _relative(path: str, what: str) -> str:
    parts = PurePosixPath(path).parts
    if ".." in parts or "\0" in path:
        raise Invalid(f"{what} {path!r} must not contain `..`")
    if what != "working_dir" and not parts:
        raise Invalid(f"a {what} needs a path")
    return "/".join(parts)


def _runner() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
