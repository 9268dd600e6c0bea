"""Makes the mounts of a task in its own mount namespace: bind mounts of folders of the node, and tmpfs.

Paths are opened one part at a time, and links in them are never followed, because tenants write to the folders of a
task and to its volumes. Nothing is created on the file systems of the node."""

import os
import stat

from mandor.engines.shim import kernel
from mandor.engines.shim.task_user import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from mandor.engines.shim.task_user import TaskUser

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ELOOP = 40


class MountPoints:
    """Mount points of one view; missing ones are created only where that does not change the node.

    `base`: the root of the view; `own`: paths of the task, below which missing folders are created; `private`: the root
    belongs to the task, so that folders can be created anywhere in it."""

    def __init__(self, base: str, own: "Sequence[str]", task_user: "TaskUser | None", *, private: bool = False) -> None:
        self._base = base
        self._own = list(own)
        self._person = task_user
        self._private = private

    def add_own(self, path: str) -> None:
        self._own.append(path)

    def open(self, target: str, *, folder: bool = True) -> int:
        """Open a mount point with O_PATH, created if it is missing."""
        here = os.open(self._base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        parts = [part for part in target.split("/") if part]
        way = ""
        for number, part in enumerate(parts, start=1):
            way += f"/{part}"
            last = number == len(parts)
            above = here
            try:
                here = self._step(above, part, way, folder=folder or not last, last=last)
            finally:
                os.close(above)
        return here

    def _step(self, above: int, part: str, way: str, *, folder: bool, last: bool) -> int:
        kind = 0 if last else os.O_DIRECTORY
        try:
            found = os.open(part, _PATH | kind, dir_fd=above)
        except FileNotFoundError:
            self._make(above, part, way, folder=folder)
            found = os.open(part, _PATH | kind, dir_fd=above)
        except NotADirectoryError:
            raise Refused(f"{way} is a link or a file: all parts of a mount path must be folders") from None
        if stat.S_ISLNK(os.fstat(found).st_mode):
            os.close(found)
            raise Refused(f"{way} is a link: links in mount paths are not followed")
        return found

    def _make(self, above: int, part: str, way: str, *, folder: bool) -> None:
        own = any(way.startswith(f"{path.rstrip('/')}/") for path in self._own)
        if not own and not self._private:
            raise Refused(f"{way} does not exist on this node: mount points are created only in the task's own folder")
        if folder:
            os.mkdir(part, 0o755, dir_fd=above)
        else:
            os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=above))
        if own and self._person is not None and os.geteuid() == 0:
            os.chown(part, self._person.uid, self._person.gid, dir_fd=above, follow_symlinks=False)


def leave_node() -> None:
    """Enter a new mount namespace: it receives later mounts of the node, and its own mounts stay private."""
    kernel.unshare(kernel.NEW_MOUNTS)
    kernel.mount(None, b"/", None, kernel.RECURSIVE | kernel.SLAVE)


def make_all(mounts: "Sequence[dict[str, Any]]", mount_points: MountPoints, flags: int = 0) -> None:
    """Make the mounts of a launch in order, each with these flags."""
    for each in mounts:
        try:
            _make(each, mount_points, flags)
        except (OSError, Refused) as error:
            what = each["source"] or "memory"
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Refused(f"cannot mount {what} at {each['target']}: {reason}") from None
        mount_points.add_own(each["target"])


def _make(each: "dict[str, Any]", mount_points: MountPoints, flags: int) -> None:
    flags |= kernel.READ_ONLY if each["read_only"] else 0
    if each["source"] is None:
        size = "" if each["size"] is None else f",size={each['size']}"
        flags |= kernel.NO_SUID | kernel.NO_DEVICES
        mount_new(b"tmpfs", mount_points, each["target"], flags, f"mode=1777{size}")
        return
    # Mounts below a read-only source are left out, because they keep their own flags.
    bind(each["source"], mount_points, each["target"], flags, recursive=not each["read_only"])


def mount_new(kind: bytes, mount_points: MountPoints, target: str, flags: int, data: str = "") -> None:
    """Mount a new file system of a kind."""
    place = mount_points.open(target)
    try:
        kernel.mount(kind, _name(place), kind, flags, data.encode() or None)
    finally:
        os.close(place)


def bind(source: str, mount_points: MountPoints, target: str, flags: int = 0, *, recursive: bool) -> None:
    """Bind a path of the node, which must not contain links, to a path of the view."""
    found = open_without_links(source)
    try:
        place = mount_points.open(target, folder=stat.S_ISDIR(os.fstat(found).st_mode))
        try:
            kernel.mount(_name(found), _name(place), None, kernel.BIND | (kernel.RECURSIVE if recursive else 0))
        finally:
            os.close(place)
    finally:
        os.close(found)
    if flags:
        place = mount_points.open(target)
        try:
            # Existing flags of the file system must be repeated, or the kernel refuses.
            kept = os.fstatvfs(place).f_flag & (kernel.READ_ONLY | kernel.NO_SUID | kernel.NO_DEVICES | kernel.NO_EXEC)
            kernel.mount(None, _name(place), None, kernel.REMOUNT | kernel.BIND | flags | kept)
        finally:
            os.close(place)


def open_without_links(path: str) -> int:
    """Open a path that the agent has resolved and checked; a link that was created since then is not followed."""
    here = os.open("/", os.O_PATH | os.O_CLOEXEC)
    parts = [part for part in path.split("/") if part]
    for number, part in enumerate(parts, start=1):
        above = here
        try:
            here = os.open(part, _PATH | (os.O_DIRECTORY if number < len(parts) else 0), dir_fd=above)
        finally:
            os.close(above)
    if stat.S_ISLNK(os.fstat(here).st_mode):
        os.close(here)
        raise OSError(_ELOOP, os.strerror(_ELOOP))
    return here


def _name(file: int) -> bytes:
    return b"/proc/self/fd/%d" % file


def can_make() -> bool:
    """Return whether this process may mount; the attempt changes its mount namespace."""
    try:
        leave_node()
        kernel.mount(b"tmpfs", b"/", b"tmpfs", 0, b"size=4096")
    except OSError:
        return False
    return True
