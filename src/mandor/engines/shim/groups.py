"""Operations on the cgroups of one unit, version 1 or 2.

A group is a record: `above` are its parent groups, outermost first, with the controllers that each enables (version 2
only); `writes` are its limits.
"""

import os
import time

from mandor.engines.shim.light import signal, try_write_kernel, write_kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypedDict

    class Group(TypedDict):
        path: str
        version: int
        above: list[tuple[str, str]]
        writes: list[tuple[str, str]]


def make(group: "Group") -> None:
    """Create a group with its limits; it may exist already."""
    for _ in range(20):
        try:
            for path, controllers in group["above"]:
                os.makedirs(path, exist_ok=True)
                _hand_down(path, controllers)
            os.makedirs(group["path"], exist_ok=True)
            break
        except FileNotFoundError:
            continue  # Another process removed the empty parent group in between.
    for name, value in group["writes"]:
        _set(group["path"], name, value)


def _hand_down(path: str, controllers: str) -> None:
    for controller in controllers.split():
        try_write_kernel(
            f"{path}/cgroup.subtree_control", f"+{controller}"
        )  # Setting the limit that needs it will fail with a message.


def _set(path: str, name: str, value: str) -> None:
    """Set a limit; a name that begins with `?` may be missing or refused."""
    try:
        write_kernel(f"{path}/{name.removeprefix('?')}", value)
    except OSError as error:
        if not name.startswith("?"):
            raise OSError(error.errno, f"cannot set {name} to {value}: {os.strerror(error.errno or 0)}") from error


def make_and_join(group: "Group") -> None:
    """Create a group, which others may remove while it is empty, and move this process into it."""
    for _ in range(20):
        try:
            make(group)
            join([group["path"]])
            return
        except FileNotFoundError:
            continue


def join(paths: "Sequence[str]") -> None:
    """Move this process into the groups."""
    for path in paths:
        write_kernel(f"{path}/cgroup.procs", "0")


def members(path: str) -> list[int]:
    """Return the processes in a group and in the groups inside it."""
    found: list[int] = []
    for folder, _, _ in os.walk(path):
        try:
            with open(f"{folder}/cgroup.procs", encoding="ascii") as file:
                found += [int(line) for line in file]
        except OSError:
            continue
    return found


def kill(paths: "Sequence[str]") -> None:
    """Kill all processes in the groups."""
    for path in paths:
        try_write_kernel(f"{path}/cgroup.kill", "1")
    for path in paths:
        _kill_members(path)


def _kill_members(path: str) -> None:
    """Kill each member by pidfd, if it is still a member then: process ids are reused."""
    held: dict[int, int] = {}
    for pid in members(path):
        try:
            held[pid] = os.pidfd_open(pid)
        except OSError:
            continue  # It has ended.
    still = set(members(path)) if held else set()
    for pid, process in held.items():
        try:
            if pid in still:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        except OSError:
            pass
        os.close(process)


def remove(paths: "Sequence[str]", *, seconds: float) -> bool:
    """Remove empty groups, waiting for the last process; return whether all are gone."""
    until = time.monotonic() + seconds
    left = list(paths)
    while True:
        left = [path for path in left if not _removed(path)]
        if not left or time.monotonic() >= until:
            return not left
        time.sleep(0.01)


def _removed(path: str) -> bool:
    for folder, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(folder)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def oom_kills(paths: "Sequence[str]") -> int:
    """Return the number of processes in the groups that the kernel killed for lack of memory."""
    return max(
        (_counter(path, name, "oom_kill") for path in paths for name in ("memory.events", "memory.oom_control")),
        default=0,
    )


def cpu_seconds(paths: "Sequence[str]") -> float | None:
    """Return the CPU seconds used in the groups; None: no controller counts them."""
    for path in paths:
        try:
            with open(f"{path}/cpuacct.usage", encoding="ascii") as file:
                return int(file.read()) / 1e9
        except OSError:
            pass
        used = _counter(path, "cpu.stat", "usage_usec")
        if used:
            return used / 1e6
    return None


def memory_bytes(paths: "Sequence[str]") -> int | None:
    """Return the memory in use without reclaimable file cache; None: no controller counts it."""
    for path in paths:
        for total, inactive in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
            try:
                with open(f"{path}/{total}", encoding="ascii") as file:
                    used = int(file.read())
            except OSError:
                continue
            return max(0, used - _counter(path, "memory.stat", inactive))
    return None


def _counter(path: str, name: str, key: str) -> int:
    try:
        with open(f"{path}/{name}", encoding="ascii") as file:
            for line in file:
                word, _, value = line.partition(" ")
                if word == key:
                    return int(value)
    except OSError:
        pass
    return 0
