"""Marks say whose an instance is: the labels of a container, under names that Incus lets others use."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from mandor.engines.base import Launch, Unit
from mandor.engines.containers import labels

NAME_MOST = 63


def _mark(label: str) -> str:
    return "user." + label.removeprefix("io.")


OWNER, UID, TASK, ATTEMPT = (_mark(each) for each in labels.TOKEN)
SIGNAL = _mark(labels.SIGNAL)
COMMAND = "user.mandor.command"
"""`1`: it runs a command; absent: it is the machine itself that was asked for."""
STARTED = "user.mandor.started"
"""When it was told to start, in seconds; absent: it is not complete yet."""
LOG = "user.mandor.log"


def instance_name(unit: Unit) -> str:
    """Letters, digits and hyphens, as Incus wants it; the same for the same unit."""
    plain = f"m-{unit.uid}-{unit.task}-{unit.attempt}"
    name = re.sub(r"[^a-zA-Z0-9-]", "-", plain)
    if name == plain and len(name) <= NAME_MOST:
        return name
    return f"{name[:46].rstrip('-')}-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def marks_of(owner: str, unit: Unit, launch: Launch, log: str) -> dict[str, str]:
    marks = {_mark(label): value for label, value in labels.labels_of(owner, unit, launch).items()} | {LOG: log}
    return marks | ({COMMAND: "1"} if launch.command or launch.args else {})


def unit_of(config: Mapping[str, str], owner: str) -> Unit | None:
    """None: it is somebody else's, or no unit's."""
    return labels.unit_of({label: config.get(_mark(label), "") for label in labels.TOKEN}, owner)
