"""From a launch to bwrap's command line, or to the reason why it can never start."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from mandor.engine import Invalid, Launch, Mount

WORK = "/task"
"""Where a task finds the folder of its own."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SEEN = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt")
"""What a task sees of the node, read-only."""


class Options(msgspec.Struct, forbid_unknown_fields=True):
    """What a task may say under `options.bubblewrap`."""

    network: Literal["host", "none"] = "host"


def command_line(launch: Launch, work: Path) -> list[str]:
    """`work`: the unit's own folder on the node. bwrap's own name is not part of it."""
    options = _options(launch)
    if launch.image:
        raise Invalid(f"bubblewrap runs programs of the node, not images ({launch.image})")
    if launch.user is not None:
        raise Invalid("bubblewrap runs a task as the agent's user; leave `security.user` out")
    if not launch.command:
        raise Invalid("there is no command to run")
    words = ["--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--clearenv"]
    words += ["--share-net"] if options.network == "host" else []
    words += [word for path in SEEN for word in _see(path)]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", str(work), WORK]  # noqa: S108
    words += [word for mount in launch.mounts for word in _mount(mount)]
    for name, value in {"PATH": PATH, **launch.env}.items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", str(PurePosixPath(WORK, launch.working_dir or "")), "--", *launch.command, *launch.args]


def write_files(launch: Launch, work: Path) -> None:
    """Into the task's own folder: the rest of what it sees is the node's."""
    folder = launch.working_dir or ""
    for file in launch.files:
        path = PurePosixPath(folder, file.path)
        if path.is_absolute() or ".." in path.parts:
            raise Invalid(f"the file {file.path} is not below the task's own folder; write a relative path")
        target = work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.content, encoding="utf-8")
        target.chmod(int(file.mode, 8))
    if not folder.startswith("/"):
        (work / folder).mkdir(parents=True, exist_ok=True)


def stop_signal(launch: Launch) -> int:
    try:
        return int(signal.Signals[launch.stop_signal])
    except KeyError:
        raise Invalid(f"{launch.stop_signal!r} is not a signal") from None


def _options(launch: Launch) -> Options:
    try:
        return msgspec.convert(dict(launch.options), Options)
    except msgspec.ValidationError as error:
        raise Invalid(f"options.bubblewrap: {error}") from None


def _see(path: str) -> Iterator[str]:
    if os.path.islink(path):
        yield from ("--symlink", os.readlink(path), path)
    elif os.path.isdir(path):
        yield from ("--ro-bind", path, path)


def _mount(mount: Mount) -> Iterator[str]:
    place = str(PurePosixPath(WORK, mount.path))
    if mount.source is None:
        yield from ("--size", str(mount.size_bytes)) if mount.size_bytes else ()
        yield from ("--tmpfs", place)
    elif os.path.exists(mount.source):
        yield from ("--ro-bind" if mount.read_only else "--bind", mount.source, place)
    else:
        raise Invalid(f"the mount {mount.path}: there is no {mount.source} on this node")
