"""TaskVariant: differences of a task in an alternative form of its group."""

from typing import Any

import msgspec
from msgspec import Struct

from mandor.model.resources import TaskResources
from mandor.model.task import File, Probe, Security, Stop, Task, TaskMount, Text

_MERGED = ("env", "options")


class TaskVariant(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Differences of a task from the main form. Fields that are set replace those of the main form.

    `image`, `command` and `args` belong together: setting an image or a command replaces all three.
    """

    image: Text | None = None
    """Image to run. If only `command` is set, the form has no image."""
    command: tuple[Text, ...] | None = None
    """Program and its first arguments."""
    args: tuple[Text, ...] | None = None
    """Further arguments."""
    env: dict[str, str] = {}
    """Environment variables, merged into those of the main form."""
    secrets: dict[str, Text] | None = None
    """Environment variables from secrets; replaces those of the main form."""
    files: tuple[File, ...] | None = None
    """Files; replaces those of the main form."""
    mounts: tuple[TaskMount, ...] | None = None
    """Mounts; replaces those of the main form."""
    working_dir: Text | None = None
    """Working directory."""
    resources: TaskResources | None = None
    """Requested resources and limits; replaces those of the main form."""
    health: Probe | None = None
    """Liveness probe: the task is restarted when it fails."""
    readiness: Probe | None = None
    """Readiness probe: the instance is ready while it succeeds."""
    startup: Probe | None = None
    """Startup probe: the other probes wait until it succeeds."""
    stop: Stop | None = None
    """How the task is stopped."""
    security: Security | None = None
    """User, capabilities and privileges of the task."""
    options: dict[str, dict[str, Any]] = {}
    """Engine-specific options by engine, merged into those of the main form."""

    @property
    def empty(self) -> bool:
        """Whether no field is set."""
        return all(getattr(self, name) in (None, {}) for name in TaskVariant.__struct_fields__)

    def over(self, task: Task) -> Task:
        """Return the task in this form; raises `ValueError` if it is not valid."""
        named = {name: getattr(self, name) for name in TaskVariant.__struct_fields__}
        changes = {name: value for name, value in named.items() if value is not None and name not in _MERGED}
        if self.image is not None or self.command is not None:
            changes |= {"image": self.image, "command": self.command or (), "args": self.args or ()}
        changes |= {name: {**getattr(task, name), **named[name]} for name in _MERGED}
        return msgspec.structs.replace(task, **changes)
