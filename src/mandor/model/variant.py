"""TaskVariant: what is different about a task in an alternative form of its group."""

from typing import Any

import msgspec
from msgspec import Struct

from mandor.model.resources import TaskResources
from mandor.model.task import File, Probe, Security, Stop, Task, TaskMount, Text

_LAID_OVER = ("env", "options")


class TaskVariant(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A task in another form. What is not named here is as in the main form; what is named replaces it.

    `image`, `command` and `args` belong together: whoever names an image or a command says all three anew.
    """

    image: Text | None = None
    """What to run; without it and with a `command`, the form has no image."""
    command: tuple[Text, ...] | None = None
    """The program and its first arguments."""
    args: tuple[Text, ...] | None = None
    """Further arguments."""
    env: dict[str, str] = {}
    """Environment variables over those of the main form."""
    files: tuple[File, ...] | None = None
    """All of its files."""
    mounts: tuple[TaskMount, ...] | None = None
    """All of its mounts."""
    working_dir: Text | None = None
    """Where it starts."""
    resources: TaskResources | None = None
    """All that it asks for, and the most it may use."""
    health: Probe | None = None
    """Bad answers restart the task."""
    readiness: Probe | None = None
    """Good answers make the instance ready."""
    startup: Probe | None = None
    """Asked before the others."""
    stop: Stop | None = None
    """How it is asked to end."""
    security: Security | None = None
    """As whom it runs."""
    options: dict[str, dict[str, Any]] = {}
    """What only one engine knows, by engine, over that of the main form."""

    @property
    def empty(self) -> bool:
        """It names nothing of the task."""
        return all(getattr(self, name) in (None, {}) for name in TaskVariant.__struct_fields__)

    def over(self, task: Task) -> Task:
        """The task in this form; a `ValueError` when that is none."""
        named = {name: getattr(self, name) for name in TaskVariant.__struct_fields__}
        changes = {name: value for name, value in named.items() if value is not None and name not in _LAID_OVER}
        if self.image is not None or self.command is not None:
            changes |= {"image": self.image, "command": self.command or (), "args": self.args or ()}
        changes |= {name: {**getattr(task, name), **named[name]} for name in _LAID_OVER}
        return msgspec.structs.replace(task, **changes)
