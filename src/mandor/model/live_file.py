"""Live files: files of a running task that are replaced when a secret in them changes (`on_change: signal`).

A file can be replaced in a running container only inside a mounted folder, so the folder of such a file is mounted as a
whole, with all files of the task that are in it."""

from collections.abc import Iterable
from posixpath import dirname, join, normpath, relpath
from typing import TYPE_CHECKING, NamedTuple

from mandor.model.meta import InvalidField

if TYPE_CHECKING:
    from mandor.model.task import File, Task

_SYSTEM = frozenset(
    (
        *("/", "/bin", "/boot", "/etc", "/home", "/lib", "/lib32", "/lib64", "/media", "/mnt", "/opt", "/root"),
        *("/run", "/sbin", "/srv", "/tmp", "/usr", "/var", "/etc/ssl", "/etc/ssl/certs", "/usr/bin", "/usr/lib"),  # noqa: S108 - in the image
        *("/usr/local", "/usr/local/bin", "/usr/local/etc", "/usr/local/lib", "/usr/sbin", "/usr/share"),
        *("/var/cache", "/var/lib", "/var/log", "/var/run", "/var/tmp"),  # noqa: S108 - in the image
    )
)
"""Folders that other programs of an image use: a mount must not cover them."""
_KERNEL = ("/dev", "/proc", "/sys")


class LiveFile(NamedTuple):
    """A file inside a live folder of its task."""

    folder: str
    """Absolute, or relative to the working directory of a task without an image."""
    number: int
    """Place of the folder among the live folders of the task."""
    name: str
    """Path inside the folder."""
    file: "File"
    secret: bool
    """Whether the text contains a secret."""


def signal_files(task: "Task") -> list["File"]:
    """Return the files with a secret whose change sends a signal to the task."""
    return [each for each in task.files if (each.on_change or task.on_change) == "signal" and each.references]


def live_folders(task: "Task") -> list[str]:
    """Return the folders of `signal_files`; a folder inside another one of them is left out."""
    folders = sorted({dirname(_path(task, each)) for each in signal_files(task)})
    return [each for each in folders if not any(_within(each, other) for other in folders if other != each)]


def live_files(task: "Task") -> list[LiveFile]:
    """Return all files of the task that are in its live folders; their texts may contain references to secrets."""
    folders = live_folders(task)
    if not folders:
        return []
    found = []
    for file in task.files:
        path = _path(task, file)
        for number, folder in enumerate(folders):
            if _within(path, folder):
                found.append(LiveFile(folder, number, relpath(path, folder), file, secret=bool(file.references)))
    return found


def live_needs(tasks: Iterable["Task"]) -> set[str]:
    """Return the capabilities that an engine needs for the live files of the tasks."""
    folders = [folder for task in tasks for folder in live_folders(task)]
    return {each for folder in folders for each in ("signal", "mounts" if folder.startswith("/") else "links")}


def check_live_files(task: "Task") -> None:
    """Refuse `on_change: signal` where it cannot work: secrets in variables, init tasks, shared folders."""
    files = signal_files(task)
    if task.on_change == "signal":
        if names := _secret_variables(task):
            raise InvalidField(
                f"`signal` cannot change environment variables of a running process: {names[0]} has a secret",
                "on_change",
                hint="put the secret into a file of `files`, or write `on_change: restart` for the task and "
                "`on_change: signal` for its files",
            )
        if not files:
            raise InvalidField(
                "`signal` needs a file with a secret, and the task has none",
                "on_change",
                hint="`files: [{path: /run/app/password, secret: db/password}]`, or leave `on_change` out",
            )
    if not files:
        if task.change_signal != "SIGHUP":
            raise InvalidField(
                "`change_signal` is sent only with `on_change: signal`",
                "change_signal",
                hint="write `on_change: signal` for the task or for one of its files",
            )
        return
    if task.role == "init":
        raise InvalidField(
            "an init task gets no signals: it runs to its end", "on_change", hint="leave `on_change` out"
        )
    taken = [mount.path for mount in task.mounts]
    if task.identity is not None and task.identity.file:
        taken.append(task.identity.file)
    for file in files:
        _check_folder(task, file, taken)


def _check_folder(task: "Task", file: "File", taken: Iterable[str]) -> None:
    if task.image and not file.path.startswith("/") and not (task.working_dir or "").startswith("/"):
        raise InvalidField(
            f"the file {file.path} has `on_change: signal` and needs an absolute path, because the task has an `image`",
            "files",
            hint=f"`path: /run/app/{file.path}`, or an absolute `working_dir`",
        )
    path = _path(task, file)
    folder = dirname(path)
    shared = folder in _SYSTEM or any(_within(folder, each) for each in _KERNEL)
    if not folder or shared or (task.working_dir and folder == normpath(task.working_dir)):
        raise InvalidField(
            f"the file {file.path} has `on_change: signal` and needs a folder of its own: the folder is mounted, and "
            "hides what the image has there",
            "files",
            hint=f"`path: {join(folder, 'live', path.rpartition('/')[2])}`",
        )
    for each in taken:
        if _within(normpath(each), folder):
            raise InvalidField(
                f"{each} is in the folder of the file {file.path}, which has `on_change: signal`: nothing else is "
                "mounted there",
                "files",
                hint="put the file into a folder of its own",
            )


def _path(task: "Task", file: "File") -> str:
    """Return where the task finds the file; relative to the working directory for a task without an image."""
    base = (task.working_dir or "") if task.image else ""
    return normpath(join(base, file.path))


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _secret_variables(task: "Task") -> list[str]:
    return sorted((*task.secrets, *(name for name, value in task.env.items() if "${secret:" in value)))
