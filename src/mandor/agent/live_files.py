"""Live files on this node: files of tasks that are replaced while the tasks run, when a secret in them changes.

Each live folder of a task is a folder of the node that is mounted into the task: a rename inside it is seen there. It
is memory (`/run`) where the agent is root, and readable by root and the user of the task alone.
"""

import contextlib
import os
import pwd
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from mandor.agent.identity import memory_folder
from mandor.agent.journal import Blocking
from mandor.agent.live_file_plan import CLOSED, live_folder
from mandor.model.live_file import LiveFile
from mandor.model.task import File

DEFAULT_MODE = File(path="x").mode
SECRET_MODE = 0o400
"""Mode of a file with a secret and without a mode, in a task without an image."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class LiveFileKeeper:
    """Writes the live files of tasks before they start, replaces them, and deletes them."""

    def __init__(self, data: Path, node: str, blocking: Blocking) -> None:
        memory = memory_folder(node)
        self.folder = str((memory.parent if memory is not None else data) / "files")
        self._blocking = blocking

    async def write(
        self, uid: str, task: str, files: Sequence[LiveFile], user: str | int | None, *, image: bool
    ) -> list[str]:
        """Write the files that differ from those on the node; return their paths in the task. `user`: the owner, on
        this node; `image`: the task has an image."""
        place = Path(live_folder(self.folder, uid, task, image=image))
        written: list[str] = await self._blocking(write_live_files, place, files, Owner.of(user, image=image))
        return written

    async def changed(self, uid: str, task: str, files: Sequence[LiveFile], *, image: bool) -> bool:
        """Return whether a file on the node differs."""
        place = Path(live_folder(self.folder, uid, task, image=image))
        changed: bool = await self._blocking(has_changed, place, files)
        return changed

    async def forget(self, uid: str) -> None:
        """Delete the files of an instance that has ended."""
        await self._blocking(_delete, Path(self.folder), uid)


class Owner(NamedTuple):
    """The owner of live files, and whether other users inside the task may read them."""

    uid: int | None
    """None: the user of the agent."""
    gid: int | None
    image: bool
    shared: bool
    """The task's user is known only inside its image, or the agent may not change owners: all users inside read."""

    @classmethod
    def of(cls, user: str | int | None, *, image: bool) -> "Owner":
        name, _, group = str("" if user is None else user).partition(":")
        uid = int(name) if name.isdecimal() else None
        gid = int(group) if group.isdecimal() else None
        if uid is None and name and not image:
            with contextlib.suppress(KeyError):
                uid = pwd.getpwnam(name).pw_uid
        if os.geteuid() != 0:
            return cls(None, None, image, shared=image)
        return cls(uid, gid, image, shared=image and uid is None)

    def mode_of(self, file: LiveFile) -> int:
        if file.secret and not self.image and file.file.mode == DEFAULT_MODE:
            return SECRET_MODE
        return int(file.file.mode, 8) | (0o444 if self.shared else 0)

    def give(self, descriptor: int, mode: int) -> None:
        if self.uid is not None:
            os.fchown(descriptor, self.uid, -1 if self.gid is None else self.gid)
        os.fchmod(descriptor, mode)


def write_live_files(place: Path, files: Sequence[LiveFile], owner: Owner) -> list[str]:
    """Write the files below `place`, each in one step: readers see the old text or the new one, whole.

    A task may own its live folders. So folders are opened one by one, no link in them is followed, and a file is
    replaced by a rename: nothing outside of `place` can be written."""
    _make_place(place)
    written = []
    for file in files:
        with _folder_of(place, file, owner) as folder:
            if _text(folder, file) != file.file.content.encode():
                _replace(folder, file, owner)
                written.append(f"{file.folder}/{file.name}")
    return written


def has_changed(place: Path, files: Sequence[LiveFile]) -> bool:
    """Return whether the text of a file differs from the one below `place`."""
    for file in files:
        try:
            with _folder_of(place, file, None) as folder:
                if _text(folder, file) != file.file.content.encode():
                    return True
        except FileNotFoundError:
            return True
    return False


def _make_place(place: Path) -> None:
    # Tasks without an image go through these folders to their own: passing is allowed, listing is not.
    place.parent.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    place.parent.mkdir(mode=0o700 if place.parent.name == CLOSED else 0o711, exist_ok=True)
    place.mkdir(mode=0o711, exist_ok=True)


@contextlib.contextmanager
def _folder_of(place: Path, file: LiveFile, owner: Owner | None) -> Iterator[int]:
    """Open the folder of a file. `owner`: of missing folders, which are made; None: `FileNotFoundError`."""
    with contextlib.ExitStack() as opened:
        folder = os.open(place, _FOLDER)
        opened.callback(os.close, folder)
        for part in (str(file.number), *file.name.split("/")[:-1]):
            folder = _enter(folder, part, owner)
            opened.callback(os.close, folder)
        yield folder


def _enter(above: int, name: str, owner: Owner | None) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=above)
    except FileNotFoundError:
        if owner is None:
            raise
    os.mkdir(name, 0o700, dir_fd=above)
    folder = os.open(name, _FOLDER, dir_fd=above)
    owner.give(folder, 0o755 if owner.shared else 0o700 if owner.uid is None else 0o500)
    return folder


def _text(folder: int, file: LiveFile) -> bytes | None:
    """Return the text of the file on the node; None: there is no plain file of that name."""
    try:
        descriptor = os.open(_last(file), _READ, dir_fd=folder)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as found:
        return found.read() if stat.S_ISREG(os.fstat(descriptor).st_mode) else None


def _replace(folder: int, file: LiveFile, owner: Owner) -> None:
    draft = f".{_last(file)}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)
    descriptor = os.open(draft, _CREATE, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(file.file.content.encode())
            out.flush()
            owner.give(descriptor, owner.mode_of(file))
        os.rename(draft, _last(file), src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft, dir_fd=folder)
        raise


def _last(file: LiveFile) -> str:
    return file.name.rpartition("/")[2]


def _delete(folder: Path, uid: str) -> None:
    for place in folder.glob(f"*/{uid}.*"):
        shutil.rmtree(place, ignore_errors=True)
