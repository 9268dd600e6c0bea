"""Folders that tasks of a Nomad group find: the one they share, and what is fetched for one of them."""

from collections.abc import Sequence
from typing import Any

from mandor.importers.nomad.artifact import IMAGE
from mandor.importers.nomad.task import TaskDraft
from mandor.importers.part import Part

SHARED, OWN = "alloc", "local"
_SCRATCH = {"type": "scratch", "mode": "0777"}


def share_folder(drafts: Sequence[TaskDraft], disk: Part) -> None:
    """Whoever names the shared folder has it; one that outlives its instance is a volume."""
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
                disk.guess(key, "nothing in this file uses the folder, and a successor begins with an empty one")
    for each in using:
        _mount(each, SHARED, SHARED, volume)


def fetching_task(draft: TaskDraft) -> dict[str, Any]:
    """Fetches what a task in a container wants; its own folder is one that both of them have."""
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
