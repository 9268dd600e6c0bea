"""Plan for one volume: its phase, who uses it, when it begins anew, and when it goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance
from mandor.model.node import Node, NodePhase
from mandor.model.volume import Volume, VolumePhase, VolumeStatus

USERS_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Seen:
    volume: Volume
    node: Node | None
    """The one it is on, if that exists."""
    users: Sequence[Instance]
    """That have it, and are not over."""
    owned: bool
    """The workload it belongs to exists."""


def plan(seen: Seen) -> Draft:
    draft = Draft()
    volume = seen.volume
    status = volume.status
    if volume.spec.reclaim == "delete" and status.workload and not seen.owned and not seen.users:
        draft.delete(volume)
        draft.note(volume, "Reclaimed", f"the workload {status.workload} is gone, and its data goes with it")
        return draft
    if volume.spec.on_loss == "recreate" and status.path and _lost(seen):
        draft.note(volume, "Recreated", f"its node {status.node} is lost: it begins anew, empty", warning=True)
        status = VolumeStatus(workload=status.workload, incarnation=status.incarnation + 1)
    else:
        status = _told(seen)
        if status.phase == "Lost" != volume.status.phase:
            draft.note(volume, "Lost", status.message, warning=True)
    if status != volume.status:
        draft.put(volume.changed(status=status))
    return draft


def _told(seen: Seen) -> VolumeStatus:
    status = seen.volume.status
    phase: VolumePhase = "Bound" if status.node else "Pending"
    message = ""
    if status.path and _lost(seen):
        phase = "Lost"
        message = f"its node {status.node} is {'gone' if seen.node is None else seen.node.status.phase.value}"
    users = sorted(each.meta.name for each in seen.users)
    shown = tuple(users[:USERS_SHOWN]) + ((f"and {len(users) - USERS_SHOWN} more",) if len(users) > USERS_SHOWN else ())
    return msgspec.structs.replace(status, phase=phase, message=message, used_by=shown)


def _lost(seen: Seen) -> bool:
    return seen.node is None or seen.node.status.phase is NodePhase.DOWN
