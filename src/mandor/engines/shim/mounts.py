"""A file system view of the task's own: folders of the node bound to other places, and memory, seen by it alone."""

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_NEW_MOUNTS = 0x00020000
_READ_ONLY, _NO_SUID, _NO_DEVICES = 1, 2, 4
_REMOUNT, _BIND, _RECURSIVE, _SLAVE = 32, 4096, 16384, 1 << 19


def make_own(mounts: "Sequence[dict[str, Any]]") -> None:
    """Leave the machine's view of its file systems for a private one with these mounts in it."""
    _call("unshare", _NEW_MOUNTS)
    # What the machine mounts later is seen here, too; what is mounted here is seen by nobody else.
    _call("mount", None, b"/", None, _RECURSIVE | _SLAVE, None)
    for each in mounts:
        try:
            _make(each)
        except OSError as error:
            what = each["source"] or "memory"
            raise OSError(error.errno, f"cannot mount {what} at {each['target']}: {error.strerror}") from None


def join(pid: int) -> None:
    """See what that process sees."""
    file = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _call("setns", file, _NEW_MOUNTS)
    finally:
        os.close(file)


def can_make() -> bool:
    """Whether this process may do so; it is changed by asking."""
    try:
        make_own([{"source": None, "target": "/", "size": 4096, "read_only": False}])
    except OSError:
        return False
    return True


def _make(mount: "dict[str, Any]") -> None:
    target = os.fsencode(mount["target"])
    if mount["source"] is None:
        os.makedirs(target, exist_ok=True)
        size = "" if mount["size"] is None else f",size={mount['size']}"
        flags = _NO_SUID | _NO_DEVICES | (_READ_ONLY if mount["read_only"] else 0)
        _call("mount", b"tmpfs", target, b"tmpfs", flags, f"mode=1777{size}".encode())
        return
    source = _open_without_links(mount["source"])
    try:
        _make_place(target, folder=stat.S_ISDIR(os.fstat(source).st_mode))
        # What is mounted below the source stays behind when nothing may be written: it could not be kept from it.
        flags = _BIND | (0 if mount["read_only"] else _RECURSIVE)
        _call("mount", f"/proc/self/fd/{source}".encode(), target, None, flags, None)
    finally:
        os.close(source)
    if mount["read_only"]:
        _call("mount", None, target, None, _REMOUNT | _BIND | _READ_ONLY | _kept_flags(target), None)


def _open_without_links(path: str) -> int:
    """The agent has resolved and judged this very path: a link that appeared since then is not followed."""
    here = os.open("/", os.O_PATH)
    parts = [part for part in path.split("/") if part]
    for number, part in enumerate(parts, start=1):
        above = here
        try:
            folder = os.O_DIRECTORY if number < len(parts) else 0
            here = os.open(part, os.O_PATH | os.O_NOFOLLOW | folder, dir_fd=above)
        finally:
            os.close(above)
    if stat.S_ISLNK(os.fstat(here).st_mode):
        os.close(here)
        raise OSError(40, os.strerror(40))
    return here


def _make_place(target: bytes, *, folder: bool) -> None:
    """Something has to be there to be covered."""
    if os.path.exists(target):
        return
    os.makedirs(target if folder else os.path.dirname(target), exist_ok=True)
    if not folder:
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o644))


def _kept_flags(target: bytes) -> int:
    """Flags of the file system that a remount must not take away, or it is refused; they have the same numbers."""
    return os.statvfs(target).f_flag & (_NO_SUID | _NO_DEVICES | 8)


def _call(name: str, *arguments: "bytes | int | None") -> None:
    import ctypes

    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
