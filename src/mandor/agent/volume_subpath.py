"""Directories of a volume that tasks mount by subpath.

A subpath is a directory beside the data of its volume, never below it: a task that writes to the volume cannot replace
a parent of it by a symbolic link to a folder of the node. Mounts of the whole volume show it at its place.

volumes/<namespace>/<name>/.data.subpaths/<subpath in percent-encoding>/
"""

import os
import stat
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote, unquote

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
SUBPATHS_MOST = 256
"""Subpaths of one volume."""


def make_subpaths(data: Path, wanted: Collection[str]) -> dict[str, Path]:
    """Create the wanted directories, unless they exist, with owner and mode of the data; return all subpaths of the
    volume.
    """
    place = data.with_name(f".{data.name}.subpaths")
    if not wanted and not place.is_dir():
        return {}
    place.mkdir(mode=stat.S_IMODE(data.parent.stat().st_mode), exist_ok=True)
    found = {unquote(name): place / name for name in os.listdir(place)}
    for subpath in sorted(wanted):
        if subpath in found:
            continue
        if len(found) >= SUBPATHS_MOST:
            raise OSError(f"the volume has {len(found)} subpaths; at most {SUBPATHS_MOST} are allowed")
        folder = place / quote(subpath, safe="")
        if not _take_over(data, subpath, folder):
            _make_like(data, folder)
        found[subpath] = folder
    for subpath in found:
        # Outside of a container nothing creates the place of a mount; a read-only volume has to have it.
        outer = max((each for each in found if subpath.startswith(f"{each}/")), key=len, default="")
        with suppress(OSError):
            _make_place(found[outer] if outer else data, subpath.removeprefix(f"{outer}/") if outer else subpath)
    return found


def _make_like(data: Path, folder: Path) -> None:
    found = data.stat()
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, found.st_uid, found.st_gid)
    folder.chmod(stat.S_IMODE(found.st_mode))


def _take_over(data: Path, subpath: str, folder: Path) -> bool:
    """Move a directory that tasks made at this path of the volume; return whether there was one."""
    *parents, name = subpath.split("/")
    with ExitStack() as stack:
        try:
            below = _open(stack, data, parents)
            if not stat.S_ISDIR(os.stat(name, dir_fd=below, follow_symlinks=False).st_mode):
                return False
        except OSError:
            return False
        os.rename(name, folder, src_dir_fd=below)
        if folder.is_symlink() or not folder.is_dir():  # replaced by a task meanwhile
            os.rename(folder, name, dst_dir_fd=below)
            return False
    return True


def _make_place(folder: Path, subpath: str) -> None:
    """Create an empty directory in a volume; symbolic links of its tasks are not followed."""
    with ExitStack() as stack:
        below = _open(stack, folder, [])
        for name in subpath.split("/"):
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=below)
            below = os.open(name, _FOLDER, dir_fd=below)
            stack.callback(os.close, below)


def _open(stack: ExitStack, folder: Path, names: Collection[str]) -> int:
    below = os.open(folder, _FOLDER)
    stack.callback(os.close, below)
    for name in names:
        below = os.open(name, _FOLDER, dir_fd=below)
        stack.callback(os.close, below)
    return below
