"""Turns a launch into what the supervisor reads, or says why it can never start."""

from __future__ import annotations

import os
import pwd
import signal
from pathlib import PurePosixPath
from typing import Any

from mandor.engines.base import Launch, Unit
from mandor.engines.process.folder import UnitFolder
from mandor.engines.process.hierarchy import Hierarchies
from mandor.engines.process.options import read_options
from mandor.errors import Invalid

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
UNIT_VARIABLE = "MANDOR_UNIT"
"""In the environment of everything a unit runs, so that what a dead supervisor left behind is known for what it is."""
SUPERVISORS = "supervisors"


def make_record(unit: Unit, launch: Launch, folder: UnitFolder, trees: Hierarchies, boot: str) -> dict[str, Any]:
    """`Invalid` carries the reason in words."""
    if launch.image:
        raise Invalid(f"the process engine runs programs of the node, not images ({launch.image})")
    argv = [*launch.command, *launch.args]
    if not argv or not argv[0]:
        raise Invalid("there is no command to run")
    options = read_options(launch)
    cwd, below = _folders(launch)
    return {
        "unit": str(unit),
        "name": launch.name,
        "namespace": launch.namespace,
        "argv": argv,
        "env": {"PATH": PATH, **launch.env, UNIT_VARIABLE: str(unit)},
        "user": None if launch.user is None else str(launch.user),
        "runner": _runner(),
        "cwd": cwd,
        "work": str(folder.work),
        "below": below,
        "files": [(_inside(file.path, launch), file.content, file.mode) for file in launch.files],
        "groups": trees.groups(str(unit), launch),
        "shims": trees.groups(SUPERVISORS),
        "stop_signal": stop_signal(launch.stop_signal),
        "log_bytes": int(options.log_size),
        "log_files": options.log_files,
        "boot": boot,
    }


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


def _inside(path: str, launch: Launch) -> str:
    """Where a file goes, below the unit's own folder: the machine's files are never written over."""
    if path.startswith("/"):
        raise Invalid(
            f"the file {path} has an absolute path: a process shares the node's file system, and mandor does not write"
            " there; write a relative path, it is put into the task's working directory"
        )
    working_dir = launch.working_dir or ""
    if working_dir.startswith("/"):
        raise Invalid(
            f"the file {path} would be put into {working_dir}, which is the node's own; leave `working_dir` out,"
            " or make it relative, and the task works in a folder of its own"
        )
    return str(PurePosixPath(_relative(working_dir, "working_dir"), _relative(path, "file")))


def _relative(path: str, what: str) -> str:
    parts = PurePosixPath(path).parts
    if ".." in parts or "\0" in path:
        raise Invalid(f"{what} {path!r} must not contain `..`")
    if what == "file" and not parts:
        raise Invalid("a file needs a path")
    return "/".join(parts)


def _runner() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
