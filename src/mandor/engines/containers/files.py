"""Writes the files of a task to the node, for engines that mount them."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

from mandor.engines.base import Launch
from mandor.errors import Invalid


def write_files(launch: Launch, folder: Path, working_dir: str, user: str = "") -> dict[str, str]:
    """Write each file to the node; return the paths on the node by paths in the task. `user`: that of the image."""
    found: dict[str, str] = {}
    if launch.files:
        # Closed to other users of the node: the engine's daemon mounts the files by their paths.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    for number, file in enumerate(launch.files):
        place = PurePosixPath(launch.working_dir or working_dir or "/", file.path)
        if ".." in place.parts or not place.is_absolute():
            raise Invalid(f"the path of file {file.path!r} must not contain `..`")
        source = folder / str(number)
        source.touch(mode=0o600)
        source.write_text(file.content, encoding="utf-8")
        _give(source, user if launch.user is None else str(launch.user))
        source.chmod(int(file.mode, 8))
        found[str(place)] = str(source)
    return found


def _give(path: Path, user: str) -> None:
    """Change the owner to `UID` or `UID:GID`; a name cannot be resolved outside of the image."""
    owner, _, group = user.partition(":")
    if owner.isdecimal():
        os.chown(path, int(owner), int(group) if group.isdecimal() else -1)
