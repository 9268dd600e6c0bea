"""Turns a launch into what the supervisor reads, or says why it can never start."""

from __future__ import annotations

import os
import pwd
import signal
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

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
"""In the environment of everything a unit runs, so that what a dead supervisor left behind is known for what it is."""
SUPERVISORS = "supervisors"
SECRET_MODE = "0400"  # noqa: S105 (a file mode)
"""Of a secret file whose task names no mode."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What the engine found on its node."""

    trees: Hierarchies
    confinement: Confinement
    boot: str
    mounts: bool
    """Tasks on the node's own view can have mounts, not just links."""


def make_record(unit: Unit, launch: Launch, folder: UnitFolder, ways: Ways) -> dict[str, Any]:
    """`Invalid` carries the reason in words."""
    if launch.image:
        raise Invalid(f"the process engine runs programs of the node, not images ({launch.image})")
    argv = [*launch.command, *launch.args]
    if not argv or not argv[0]:
        raise Invalid("there is no command to run")
    options = read_options("process", launch.options, ProcessOptions)
    cwd, below = _folders(launch)
    groups = ways.trees.groups(str(unit), launch)
    confined = ways.confinement.plan(launch, folder, [group["path"] for group in groups])
    mounts = ways.mounts or confined["view"] is not None
    for mount in launch.mounts:
        if mount.path.startswith("/") and mounts:
            ways.confinement.check_target(mount.path, launch)
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
        "shims": ways.trees.groups(SUPERVISORS),
        "stop_signal": stop_signal(launch.stop_signal),
        "log_bytes": int(options.log_size),
        "log_files": options.log_files,
        "boot": ways.boot,
    }


def _mode(file: File, launch: Launch) -> str:
    return SECRET_MODE if file.path in launch.secret_files and file.mode == File(path="x").mode else file.mode


def _user(launch: Launch) -> str | None:
    """A confined task of a root agent is never root: `NOBODY` where the agent names no user."""
    if launch.user is None:
        return NOBODY if launch.level != "privileged" and os.geteuid() == 0 else None
    return str(launch.user)


def stop_signal(name: str) -> int:
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise Invalid(f"{name!r} is not a signal") from None


def _folders(launch: Launch) -> tuple[str | None, str]:
    """The machine's folder to work in, if it is one, else the one below the unit's own."""
    wanted = launch.working_dir or ""
    if wanted.startswith("/"):
        return wanted, ""
    return None, _relative(wanted, "working_dir")


def _inside(path: str, launch: Launch, what: str = "file") -> str:
    """Where a file or a volume goes, below the unit's own folder: the machine's files are never written over."""
    if path.startswith("/"):
        raise Invalid(
            f"the {what} {path} has an absolute path: a process shares the node's file system, and mandor does not"
            " write there; write a relative path, it is put into the task's working directory"
        )
    working_dir = launch.working_dir or ""
    if working_dir.startswith("/"):
        raise Invalid(
            f"the {what} {path} would be put into {working_dir}, which is the node's own; leave `working_dir` out,"
            " or make it relative, and the task works in a folder of its own"
        )
    return str(PurePosixPath(_relative(working_dir, "working_dir"), _relative(path, what)))


def _place(mount: Mount, launch: Launch) -> str:
    return mount.path if mount.path.startswith("/") else _inside(mount.path, launch, "volume")


def _mount(mount: Mount, place: str) -> dict[str, Any]:
    _check_source(mount)
    return {"source": mount.source, "target": place, "size": mount.size_bytes, "read_only": mount.read_only}


def _link(mount: Mount) -> str:
    """Where there are no mounts, a link in the task's own folder leads to the volume."""
    _check_source(mount)
    wanted = "a tmpfs" if mount.source is None else "a read-only volume" if mount.read_only else ""
    if mount.path.startswith("/"):
        wanted = wanted or "a volume at an absolute path"
    if wanted or mount.source is None:
        raise Invalid(
            f"the mount {mount.path}: {wanted} needs an agent that may mount, as a rule root's; without that a volume"
            " is a link in the task's working directory: write a relative path"
        )
    return mount.source


def _check_source(mount: Mount) -> None:
    if mount.source is not None and not os.path.exists(mount.source):
        raise Invalid(f"the mount {mount.path}: there is no {mount.source} on this node")


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
