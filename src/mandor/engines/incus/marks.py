"""Marks say whose an instance is: the unit as idempotency token, and the agent it belongs to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from mandor.engines.base import Launch, Unit

OWNER = "user.mandor.owner"
UID = "user.mandor.uid"
TASK = "user.mandor.task"
ATTEMPT = "user.mandor.attempt"
NAME = "user.mandor.name"
NAMESPACE = "user.mandor.namespace"
SIGNAL = "user.mandor.signal"
COMMAND = "user.mandor.command"
"""`1`: it runs a command; absent: it is the machine itself that was asked for."""
STARTED = "user.mandor.started"
"""When it was told to start, in seconds; absent: it is not complete yet."""
LOG = "user.mandor.log"
NAME_MOST = 63


def instance_name(unit: Unit) -> str:
    """Letters, digits and hyphens, as Incus wants it; the same for the same unit."""
    plain = f"m-{unit.uid}-{unit.task}-{unit.attempt}"
    name = re.sub(r"[^a-zA-Z0-9-]", "-", plain)
    if name == plain and len(name) <= NAME_MOST:
        return name
    return f"{name[:46].rstrip('-')}-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def marks_of(owner: str, unit: Unit, launch: Launch, log: str) -> dict[str, str]:
    marks = {
        OWNER: owner,
        UID: unit.uid,
        TASK: unit.task,
        ATTEMPT: str(unit.attempt),
        NAME: launch.name,
        NAMESPACE: launch.namespace,
        SIGNAL: launch.stop_signal,
        LOG: log,
    }
    return marks | ({COMMAND: "1"} if launch.command or launch.args else {})


def unit_of(config: Mapping[str, str], owner: str) -> Unit | None:
    """None: it is somebody else's, or no unit's."""
    if config.get(OWNER) != owner or not config.get(ATTEMPT, "").isdecimal():
        return None
    return Unit(config.get(UID, ""), config.get(TASK, ""), int(config[ATTEMPT]))
