"""Labels of containers: the unit, which is the idempotency token, and the agent that owns the container."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from mandor.engines.base import Launch, Unit

OWNER = "io.mandor.owner"
UID = "io.mandor.uid"
TASK = "io.mandor.task"
ATTEMPT = "io.mandor.attempt"
TOKEN = (OWNER, UID, TASK, ATTEMPT)
"""Labels that identify a unit."""
NAME = "io.mandor.name"
NAMESPACE = "io.mandor.namespace"
SIGNAL = "io.mandor.signal"
"""Label with the stop signal, for engines that do not store it."""
DIGEST = "io.mandor.digest"
"""Label with the digest of a pulled image."""
MEMORY = "io.mandor.memory"
"""Label with the memory limit, for engines that do not store it."""


def owner_of(directory: Path) -> str:
    """Return the id of this agent in labels. It depends on the path of the folder only.

    Several agents may share an engine; each lists only its own containers.
    """
    path = directory / "owner"
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        owner = hashlib.sha256(f"{socket.gethostname()}:{directory.absolute()}".encode()).hexdigest()[:16]
        directory.mkdir(mode=0o711, parents=True, exist_ok=True)
        draft = path.with_suffix(".new")
        draft.write_text(owner + "\n", encoding="ascii")
        os.replace(draft, path)
        return owner


def container_name(unit: Unit) -> str:
    return f"mandor-{unit}"


def labels_of(owner: str, unit: Unit, launch: Launch) -> dict[str, str]:
    labels = {
        OWNER: owner,
        UID: unit.uid,
        TASK: unit.task,
        ATTEMPT: str(unit.attempt),
        NAME: launch.name,
        NAMESPACE: launch.namespace,
        SIGNAL: launch.stop_signal,
    }
    if launch.memory_bytes is not None:
        labels[MEMORY] = str(launch.memory_bytes)
    return labels


def unit_of(labels: Mapping[str, str], owner: str) -> Unit | None:
    """Return the unit of a container; None: it belongs to another agent, or to none."""
    if labels.get(OWNER) != owner or not labels.get(ATTEMPT, "").isdecimal():
        return None
    return Unit(labels.get(UID, ""), labels.get(TASK, ""), int(labels[ATTEMPT]))
