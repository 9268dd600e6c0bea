"""Labels say whose a container is: the unit as idempotency token, and the agent it belongs to."""

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
"""What tells a unit."""
NAME = "io.mandor.name"
NAMESPACE = "io.mandor.namespace"
SIGNAL = "io.mandor.signal"
"""The stop signal, where the engine forgets it."""
DIGEST = "io.mandor.digest"
"""The digest of its image, if that was pulled."""
MEMORY = "io.mandor.memory"
"""The memory limit, where the engine forgets it."""


def owner_of(directory: Path) -> str:
    """Who this agent is towards the engine: it goes with the folder, and a folder made anew in its place has the same.

    Several agents may share an engine, so each sees its own containers only.
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
    """None: it is somebody else's, or no unit's."""
    if labels.get(OWNER) != owner or not labels.get(ATTEMPT, "").isdecimal():
        return None
    return Unit(labels.get(UID, ""), labels.get(TASK, ""), int(labels[ATTEMPT]))
