"""Finds leftovers of units on a Linux machine: processes, cgroups and mounts with their uids."""

import os
from collections.abc import Iterator, Sequence


def find_traces(uids: Sequence[str]) -> list[str]:
    """Return one line per leftover."""
    marks = [uid.encode() for uid in uids]
    if not marks:
        return []
    return [*_processes(marks), *_cgroups(uids), *_mounts(uids)]


def _processes(marks: Sequence[bytes]) -> Iterator[str]:
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        command = _read(f"/proc/{name}/cmdline")
        text = command + _read(f"/proc/{name}/environ") + _link(f"/proc/{name}/cwd")
        if any(mark in text for mark in marks):
            shown = command.replace(b"\0", b" ").decode(errors="replace").strip()
            yield f"process {name}: {shown[:200]}"


def _cgroups(uids: Sequence[str]) -> Iterator[str]:
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        for name in names:
            if any(uid in name for uid in uids):
                yield f"cgroup {folder}/{name}"


def _mounts(uids: Sequence[str]) -> Iterator[str]:
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        if any(uid in line for uid in uids):
            yield f"mount {line}"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def _link(path: str) -> bytes:
    try:
        return os.fsencode(os.readlink(path))
    except OSError:
        return b""
