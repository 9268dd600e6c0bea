"""Makes a program that only waits, and a minimal image with it, so that sandboxes need no registry."""

from __future__ import annotations

import io
import platform
import struct
import tarfile

IDLE = "mandor.local/idle-1:latest"
"""The name includes the version, because podman imports every image as `latest`."""

_BASE, _HEADER_BYTES, _SEGMENT_BYTES = 0x400000, 64, 56
_PROGRAMS = {
    # mov eax, 34 (pause); syscall; jmp to the beginning
    "x86_64": (62, bytes.fromhex("b8220000000f05ebf7")),
    # mov x0..x4, 0; mov x8, 73 (ppoll); svc 0; b to the beginning
    "aarch64": (
        183,
        struct.pack("<8I", *(0xD2800000 + register for register in range(5)), 0xD2800928, 0xD4000001, 0x17FFFFF9),
    ),
}


def can_idle(machine: str | None = None) -> bool:
    return (machine or platform.machine()) in _PROGRAMS


def idle_program(machine: str | None = None) -> bytes:
    """Return an executable: ELF header, one segment, a few instructions."""
    number, code = _PROGRAMS[machine or platform.machine()]
    start = _HEADER_BYTES + _SEGMENT_BYTES
    size = start + len(code)
    header = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, number, 1, _BASE + start, _HEADER_BYTES, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + code


def idle_archive() -> bytes:
    out = io.BytesIO()
    program = idle_program()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo("idle")
        entry.size, entry.mode = len(program), 0o755
        tar.addfile(entry, io.BytesIO(program))
    return out.getvalue()
