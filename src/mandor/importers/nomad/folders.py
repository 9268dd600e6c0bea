"""Folders of tasks in a Nomad group: the shared folder, and fetched artifacts."""

from collections.abc import Sequence
from typing import Any

from mandor.importers.nomad.artifact import IMAGE
from mandor.importers.nomad.task import TaskDraft
from mandor.importers.part import Part

SHARED, OWN = "alloc", "local"
_SCRATCH = {"type": "scratch", "mode": "0777"}


def share_folder(drafts: Sequence[TaskDraft], disk: Part) -> None:
    """Mount the shared folder in tasks that name it; a folder that outlives its instance becomes a volume."""
    sticky, moved = disk.flag("sticky"), disk.flag("migrate")
    using = [each for each in drafts if each.shares]
    if sticky and using:
        volume: dict[str, Any] = {"per_instance": True, "reclaim": "delete", "on_loss": "recreate", "mode": "0777"}
        if moved:
            disk.guess("migrate", "a successor goes to the node where the data is")
    else:
        volume = dict(_SCRATCH)
        for key in ("sticky", "migrate"):
            if disk.peek(key):
                disk.guess(key, "nothing in this file uses the folder, and a new instance starts with an empty one")
    for each in using:
        _mount(each, SHARED, SHARED, volume)


def fetching_task(draft: TaskDraft) -> dict[str, Any]:
    """Return the task that fetches artifacts for a task in a container, through a shared folder."""
    name = f"{draft.name[:50]}-{OWN}"
    _mount(draft, name, OWN, dict(_SCRATCH))
    mounts = [each for each in draft.mounts if each.get("volume") in {name, SHARED}]
    return {
        "role": "init",
        "image": IMAGE,
        "command": ["/bin/sh", "-c", draft.fetching.script],
        "mounts": mounts,
    }


def _mount(draft: TaskDraft, volume: str, folder: str, made: dict[str, Any]) -> None:
    path = folder if draft.engine == "process" else f"/{folder}"
    draft.volumes[volume] = made
    draft.mounts.append({"volume": volume, "path": path})
