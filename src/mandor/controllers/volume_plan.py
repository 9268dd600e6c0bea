"""Plan for one volume: its phase and users, its recreation and its deletion."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance
from mandor.model.node import Node, NodePhase
from mandor.model.volume import Volume, VolumePhase, VolumeStatus

USERS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class VolumeInputs:
    volume: Volume
    node: Node | None
    """The volume's node, if it exists."""
    users: Sequence[Instance]
    """Instances with this volume that have not ended."""
    owned: bool
    """Whether the volume's workload exists."""


def plan(seen: VolumeInputs) -> Draft:
    draft = Draft()
    volume = seen.volume
    status = volume.status
    if volume.spec.reclaim == "delete" and status.workload and not seen.owned and not seen.users:
        draft.delete(volume)
        draft.note(volume, "Reclaimed", f"deleted with its data, because the workload {status.workload} was deleted")
        return draft
    if volume.spec.on_loss == "recreate" and status.path and _lost(seen):
        draft.note(volume, "Recreated", f"node {status.node} is lost: the volume is created again, empty", warning=True)
        status = VolumeStatus(workload=status.workload, incarnation=status.incarnation + 1)
    else:
        status = _status(seen)
        if status.phase == "Lost" != volume.status.phase:
            draft.note(volume, "Lost", status.message, warning=True)
    if status != volume.status:
        draft.put(volume.changed(status=status))
    return draft


def _status(seen: VolumeInputs) -> VolumeStatus:
    status = seen.volume.status
    phase: VolumePhase = "Bound" if status.node else "Pending"
    message = ""
    if status.path and _lost(seen):
        phase = "Lost"
        message = (
            f"node {status.node} {'no longer exists' if seen.node is None else f'is {seen.node.status.phase.value}'}"
        )
    users = sorted(each.meta.name for each in seen.users)
    shown = tuple(users[:USERS_SHOWN]) + ((f"and {len(users) - USERS_SHOWN} more",) if len(users) > USERS_SHOWN else ())
    return msgspec.structs.replace(status, phase=phase, message=message, used_by=shown)


def _lost(seen: VolumeInputs) -> bool:
    return seen.node is None or seen.node.status.phase is NodePhase.DOWN
