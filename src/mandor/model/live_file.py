"""Live files: files of a running task that are replaced when a secret in them changes (`on_change: signal`).

A file can be replaced in a running container only inside a mounted folder, so the folder of such a file is mounted as a
whole, with all files of the task that are in it."""

from collections.abc import Iterable
from posixpath import dirname, relpath
from typing import NamedTuple

from mandor.model.task import File, Task, within


class LiveFile(NamedTuple):
    """A file inside a live folder of its task."""

    folder: str
    """Absolute, or relative to the working directory of a task without an image."""
    number: int
    """Place of the folder among the live folders of the task."""
    name: str
    """Path inside the folder."""
    file: File
    secret: bool
    """Whether the text contains a secret."""


def live_folders(task: Task) -> list[str]:
    """Return the folders of `Task.signal_files`; a folder inside another one of them is left out."""
    folders = sorted({dirname(task.path_of(each)) for each in task.signal_files})
    return [each for each in folders if not any(within(each, other) for other in folders if other != each)]


def live_files(task: Task) -> list[LiveFile]:
    """Return all files of the task that are in its live folders; their texts may contain references to secrets."""
    folders = live_folders(task)
    if not folders:
        return []
    found = []
    for file in task.files:
        path = task.path_of(file)
        for number, folder in enumerate(folders):
            if within(path, folder):
                found.append(LiveFile(folder, number, relpath(path, folder), file, secret=bool(file.references)))
    return found


def live_needs(tasks: Iterable[Task]) -> set[str]:
    """Return the capabilities that an engine needs for the live files of the tasks."""
    folders = [folder for task in tasks for folder in live_folders(task)]
    return {each for folder in folders for each in ("signal", "mounts" if folder.startswith("/") else "links")}
