"""Drops rights before a program of a tenant starts: user, capabilities, new privileges, files, system calls."""

import os
import stat

from mandor.engines.shim import kernel
from mandor.engines.shim.task_user import TaskUser, become

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FILE_ACCESS = 0b111 | 1 << 14 | 1 << 15
"""Landlock rights that a rule for a single file may have: execute, write, read, truncate, device control."""


def prepare(confined: "dict[str, Any] | None") -> "int | None":
    """Create the Landlock rule set of a launch, while its folders can be opened; None: there is none."""
    if confined is None or confined["landlock"] is None:
        return None
    attributes = b"".join(number.to_bytes(8, "little") for number in confined["landlock"]["attributes"])
    rules = kernel.landlock_create(attributes)
    for path, access in confined["landlock"]["rules"]:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not on this node
        folder = stat.S_ISDIR(os.fstat(place).st_mode)
        kernel.landlock_allow(rules, access if folder else access & _FILE_ACCESS, place)
        os.close(place)
    return rules


def give_up(confined: "dict[str, Any] | None", task_user: "TaskUser | None", rules: "int | None") -> None:
    """Change to the task's user and, if the launch is confined, drop all capabilities and apply the filters."""
    if confined is None:
        if task_user is not None:
            become(task_user)
        return
    kernel.drop_bounding_set()
    if task_user is not None:
        become(task_user)
    kernel.drop_capabilities()
    kernel.gain_no_privileges()
    if rules is not None:
        kernel.landlock_restrict(rules)
        os.close(rules)
    if confined["filter"]:
        kernel.filter_calls(bytes.fromhex(confined["filter"]))
