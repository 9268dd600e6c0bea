"""System calls that the standard library lacks, resolved when this module is imported.

A supervisor imports this module before it enters the view of a task. No function here imports, opens or loads a file,
because files in the view of a task belong to the tenant.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

NEW_MOUNTS = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_USERS = 0x10000000
NEW_PIDS = 0x20000000
NEW_NET = 0x40000000

READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC = 1, 2, 4, 8
REMOUNT, BIND, RECURSIVE, SLAVE = 32, 4096, 16384, 1 << 19
DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_SECCOMP_FILTER = 2
_SIGKILL = 9
_CAPABILITIES_MAX = 64
_CAPABILITY_VERSION = 0x20080522
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446  # the same numbers on every machine
_LANDLOCK_VERSION = 1

try:
    from _ctypes import CFuncPtr, _SimpleCData, dlopen, dlsym, get_errno
except ImportError:  # an interpreter without these names needs the full module
    import ctypes

    _library = ctypes.CDLL(None, use_errno=True)
    get_errno = ctypes.get_errno
    Long: "Any" = ctypes.c_long

    def _find(name: str) -> "Callable[..., int]":
        function = getattr(_library, name)
        function.restype = ctypes.c_long
        return function  # type: ignore[no-any-return]
else:

    class Long(_SimpleCData):  # type: ignore[type-arg,no-redef]
        _type_ = "l"

    class _Function(CFuncPtr):
        _flags_ = 1 | 8  # the C calling convention; errno is kept for `get_errno`
        _restype_ = Long

    def _find(name: str) -> "Callable[..., int]":
        return _Function(dlsym(dlopen(None, 0), name))  # type: ignore[arg-type]


_mount = _find("mount")
_umount2 = _find("umount2")
_unshare = _find("unshare")
_setns = _find("setns")
_prctl = _find("prctl")
_pivot_root = _find("pivot_root")
_capset = _find("capset")
_syscall = _find("syscall")


def _check(result: int) -> int:
    # Functions that return an `int` leave the upper half of the register undefined.
    if (result & 0xFFFFFFFF) == 0xFFFFFFFF:
        number = get_errno()
        raise OSError(number, os.strerror(number))
    return result & 0xFFFFFFFF


def mount(source: "bytes | None", target: bytes, kind: "bytes | None", flags: int, data: "bytes | None" = None) -> None:
    _check(_mount(source, target, kind, Long(flags), data))


def detach(target: bytes) -> None:
    """Unmount a path and everything below it lazily."""
    _check(_umount2(target, DETACH))


def unshare(namespaces: int) -> None:
    _check(_unshare(namespaces))


def join(file: int, namespace: int) -> None:
    """Enter the namespace of an open file."""
    _check(_setns(file, namespace))


def pivot_root(new: bytes, old: bytes) -> None:
    _check(_pivot_root(new, old))


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    _check(_prctl(_PR_SET_PDEATHSIG, Long(_SIGKILL), 0, 0, 0))


def gain_no_privileges() -> None:
    """Disable set-user-id programs and file capabilities for this process and its descendants."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, Long(1), Long(0), Long(0), Long(0)))


def become_subreaper() -> None:
    """Make this process the new parent of orphaned descendants, instead of init."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, Long(1), 0, 0, 0))


def drop_bounding_set() -> None:
    """Empty the capability bounding set, so that no executed program gains a capability; needs CAP_SETPCAP."""
    for number in range(_CAPABILITIES_MAX):
        if _prctl(_PR_CAPBSET_DROP, Long(number), 0, 0, 0) & 0xFFFFFFFF:
            return  # the kernel has no higher capability


def drop_capabilities() -> None:
    """Empty the effective, permitted, inheritable and ambient sets."""
    _prctl(_PR_CAP_AMBIENT, Long(4), Long(0), Long(0), Long(0))
    header = _CAPABILITY_VERSION.to_bytes(4, "little") + bytes(4)
    _check(_capset(header, bytes(24)))


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter of eight-byte instructions for this process and its descendants."""
    text = Text(program)
    record = (len(program) // 8).to_bytes(8, "little") + text.address.to_bytes(8, "little")
    _check(_prctl(_PR_SET_SECCOMP, Long(_SECCOMP_FILTER), record, 0, 0))


class Text:
    """Bytes with a known address, kept alive by this object."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        # The C library's `memmove` returns the address that it was given: of these very bytes.
        self.address = _memmove(data, data, Long(0)) & 0xFFFFFFFFFFFFFFFF


_memmove = _find("memmove")


def landlock_version() -> int:
    """Return the version of Landlock in the kernel; 0: none."""
    found = _syscall(Long(_LANDLOCK_CREATE), None, Long(0), Long(_LANDLOCK_VERSION))
    return max(0, found)


def landlock_create(attributes: bytes) -> int:
    """Create a rule set and return its file descriptor."""
    return _check(_syscall(Long(_LANDLOCK_CREATE), attributes, Long(len(attributes)), Long(0)))


def landlock_allow(rules: int, access: int, folder: int) -> None:
    """Allow access below an open folder."""
    rule = access.to_bytes(8, "little") + folder.to_bytes(4, "little")
    _check(_syscall(Long(_LANDLOCK_ADD), Long(rules), Long(1), rule, Long(0)))


def landlock_restrict(rules: int) -> None:
    """Apply the rule set to this process and its descendants."""
    _check(_syscall(Long(_LANDLOCK_RESTRICT), Long(rules), Long(0)))
