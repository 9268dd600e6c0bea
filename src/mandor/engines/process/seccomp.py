"""The seccomp filter of confined tasks: refuses system calls that tenants do not need with EPERM.

The list follows the default profile of Docker. The filter is a classic BPF program, made once per machine type.
"""

from __future__ import annotations

import platform
import struct
from functools import cache

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`; for arguments, of the lower halves on a little-endian machine."""
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EPERM, _ENOSYS = 1, 38
_X32 = 0x40000000
_NAMESPACES = 0x7E020000
"""The flags of `clone` that make namespaces: mounts, cgroup, host name, IPC, users, processes, network."""
_TERMINAL_INPUT, _CONSOLE = 0x5412, 0x541C
"""The terminal requests TIOCSTI and TIOCLINUX."""
_VSOCK = 40

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

REFUSED: dict[str, tuple[int | None, int | None]] = {
    "_sysctl": (156, None),
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "get_kernel_syms": (177, None),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "ustat": (136, None),
    "vhangup": (153, 58),
}
"""Numbers of system calls on x86_64 and aarch64, by name; None: the machine has no such call."""
_CLONE, _CLONE3 = (56, 220), (435, 435)
_IOCTL, _SOCKET = (16, 29), (41, 198)


@cache
def make_filter(machine: str = "") -> bytes:
    """Return the filter as eight-byte instructions; empty: there is none for this machine type."""
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        return b""
    column = list(_MACHINES).index(machine)
    program = [
        _load(_MACHINE),
        *_unless_equal(_MACHINES[machine], _ENOSYS),  # programs of another architecture, such as 32-bit ones
        _load(_NUMBER),
    ]
    if machine == "x86_64":
        program += [_jump(_JUMP_AT_LEAST, _X32, 0, 1), _error(_ENOSYS)]
    for numbers in REFUSED.values():
        if (number := numbers[column]) is not None:
            program += [_jump(_JUMP_EQUAL, number, 0, 1), _error(_EPERM)]
    # The C library falls back to `clone`, whose flags the filter can check.
    program += [_jump(_JUMP_EQUAL, _CLONE3[column], 0, 1), _error(_ENOSYS)]
    program += _when(_CLONE[column], [_load(_FIRST), _jump(_JUMP_SET, _NAMESPACES, 0, 1), _error(_EPERM)])
    program += _when(
        _IOCTL[column],
        [
            _load(_SECOND),
            _jump(_JUMP_EQUAL, _TERMINAL_INPUT, 1, 0),
            _jump(_JUMP_EQUAL, _CONSOLE, 0, 1),
            _error(_EPERM),
        ],
    )
    program += _when(_SOCKET[column], [_load(_FIRST), _jump(_JUMP_EQUAL, _VSOCK, 0, 1), _error(_EPERM)])
    return b"".join([*program, _return(_ALLOW)])


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """Return instructions that run `body` for one system call, and allow the call if the body does not return."""
    return [_jump(_JUMP_EQUAL, number, 0, len(body) + 1), *body, _return(_ALLOW)]


def _unless_equal(value: int, error: int) -> list[bytes]:
    return [_jump(_JUMP_EQUAL, value, 1, 0), _error(error)]


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", _LOAD, 0, 0, offset)


def _jump(kind: int, value: int, true: int, false: int) -> bytes:
    return struct.pack("=HBBI", kind, true, false, value)


def _error(number: int) -> bytes:
    return _return(_ERRNO | number)


def _return(value: int) -> bytes:
    return struct.pack("=HBBI", _RETURN, 0, 0, value)
