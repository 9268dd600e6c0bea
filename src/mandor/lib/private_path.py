"""Checks that other users of the machine can neither change nor read what a program keeps for itself.

Owners are not compared: containers mount volumes of other users. A folder that only its owner can enter hides all that
is below it, such as a volume of Kubernetes that everybody may write.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from mandor.lib.owned_file import Unsafe


def check_private(folder: Path, secrets: Iterable[str | Path]) -> None:
    """Check a folder and the secret files that are named by paths or by names in the folder.

    Raise `Unsafe` with the command to run if others can write to one of them, replace it, or read a secret file. A file
    that does not exist is skipped.
    """
    _check(folder, secret=False)
    for each in secrets:
        _check(folder / each, secret=True)


def _check(path: Path, *, secret: bool) -> None:
    absolute = Path(os.path.abspath(path))
    link = Path(os.path.realpath(absolute.parent)) / absolute.name
    for place in dict.fromkeys((link, Path(os.path.realpath(absolute)))):
        if not _within_reach(place.parent):
            continue
        try:
            found = os.lstat(place)
        except OSError:
            continue
        if stat.S_ISLNK(found.st_mode):
            continue  # Its mode means nothing; where it leads is checked next.
        if _others_write(found):
            raise Unsafe(f"other users of this machine can write to {place}", f"chmod go-w {place}")
        if secret and (readers := _readers(found)):
            what = f"other users of this machine can read the secret file {place}"
            raise Unsafe(what, f"chmod {readers}-r {place}")


def _within_reach(folder: Path) -> bool:
    """Return whether others can enter the folder; raise `Unsafe` if they can replace it or one above it."""
    for each in (*reversed(folder.parents), folder):
        try:
            found = each.stat()
        except OSError:
            return True  # This program makes it below folders that were checked, or cannot use it at all.
        # In a sticky folder such as /tmp users can replace only their own files.
        if _others_write(found) and not found.st_mode & stat.S_ISVTX:
            raise Unsafe(f"other users of this machine can write to {each}", f"chmod go-w {each}")
        if not found.st_mode & stat.S_IXOTH and (not found.st_mode & stat.S_IXGRP or _own_group(found)):
            return False
    return True


def _own_group(found: os.stat_result) -> bool:
    """A group that only this user is in, as many systems make one for each."""
    return found.st_gid == os.getegid() == os.geteuid()


def _others_write(found: os.stat_result) -> bool:
    return bool(found.st_mode & (stat.S_IWOTH if _own_group(found) else stat.S_IWGRP | stat.S_IWOTH))


def _readers(found: os.stat_result) -> str:
    """`g`, `o` or both, as `chmod` has them: a group of this process may read, as with `fsGroup` of Kubernetes."""
    of_group = found.st_mode & stat.S_IRGRP and found.st_gid not in {os.getegid(), *os.getgroups()}
    return ("g" if of_group else "") + ("o" if found.st_mode & stat.S_IROTH else "")
