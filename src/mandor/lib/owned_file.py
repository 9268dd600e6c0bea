"""Reads configuration and code only from files that no other user of the machine can change."""

import os
import stat
from pathlib import Path

BYTES_MOST = 16 << 20


class Unsafe(OSError):
    """A file that other users of the machine could change; `strerror` ends with the command that fixes it."""

    def __init__(self, what: str, command: str) -> None:
        super().__init__(1, f"{what}; run `{command}`")


def read_owned(path: Path) -> bytes:
    """The content of a file that belongs to this user or root and that others can neither change nor replace.

    The file that is checked is the one that is read: both go through one descriptor. Raise `Unsafe` with the command to
    run, or another `OSError` if it cannot be read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(22, f"{path} is not a file")
        _check(path, found)
        for folder in (path.parent, Path(os.path.realpath(path)).parent):
            _check_parents(Path(os.path.realpath(folder)))
        content = file.read(BYTES_MOST + 1)
    if len(content) > BYTES_MOST:
        raise OSError(27, f"{path} has more than {BYTES_MOST} bytes")
    return content


def check_folder(path: Path) -> None:
    """Raise `Unsafe` if another user can put files into the folder, or replace it or one of its parents."""
    absolute = Path(os.path.realpath(path))
    _check(absolute, absolute.stat())
    _check_parents(absolute)


def _check_parents(path: Path) -> None:
    for folder in (path, *path.parents):
        found = folder.stat()
        # In a sticky folder such as /tmp users can replace only their own files.
        if not found.st_mode & stat.S_ISVTX:
            _check(folder, found)


def _check(path: Path, found: os.stat_result) -> None:
    user = os.geteuid()
    if found.st_uid not in (0, user):
        raise Unsafe(
            f"{path} belongs to the user {found.st_uid}, who could change it; this process is the user {user}",
            f"chown {user} {path}",
        )
    # A group that only this user is in, as many systems make one for each, is no other user.
    private = found.st_gid == os.getegid() == user
    if found.st_mode & (stat.S_IWOTH if private else stat.S_IWGRP | stat.S_IWOTH):
        raise Unsafe(f"{path} can be changed by other users of this machine", f"chmod go-w {path}")
