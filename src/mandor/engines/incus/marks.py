"""Labels of a unit as configuration keys of an Incus instance, below `user.`."""

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
"""Key: `1`: the unit runs a command; absent: it is the machine itself."""
STARTED = "user.mandor.started"
"""Key with the time of its start request, in seconds; absent: it is not complete yet."""
LOG = "user.mandor.log"
PULLED = "user.mandor.pulled"
"""Key: `1`: the image comes from a server, so that its fingerprint is the digest of the release's image."""


def instance_name(unit: Unit) -> str:
    """Return the name of the instance of a unit: letters, digits and hyphens, as Incus requires."""
    plain = f"m-{unit.uid}-{unit.task}-{unit.attempt}"
    name = re.sub(r"[^a-zA-Z0-9-]", "-", plain)
    if name == plain and len(name) <= NAME_MOST:
        return name
    return f"{name[:46].rstrip('-')}-{hashlib.sha256(plain.encode()).hexdigest()[:16]}"


def marks_of(owner: str, unit: Unit, launch: Launch, log: str) -> dict[str, str]:
    marks = {_mark(label): value for label, value in labels.labels_of(owner, unit, launch).items()} | {LOG: log}
    return marks | ({COMMAND: "1"} if launch.command or launch.args else {})


def digest_of(config: Mapping[str, str]) -> str:
    """Return the digest of the image that was pulled for an instance; empty: the image was on the node already."""
    fingerprint = config.get("volatile.base_image", "") if config.get(PULLED) else ""
    return f"sha256:{fingerprint}" if fingerprint else ""


def unit_of(config: Mapping[str, str], owner: str) -> Unit | None:
    """Return the unit of an instance; None: it belongs to another agent, or to none."""
    return labels.unit_of({label: config.get(_mark(label), "") for label in labels.TOKEN}, owner)
