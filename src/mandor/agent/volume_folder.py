"""Directories of this node's volumes, created and deleted atomically.

volumes/<namespace>/<name>/volume.json    record of the volume
volumes/<namespace>/<name>/data/          its data
volumes/<namespace>/<name>/.data.subpaths/ its subpaths, see `volume_subpath`
volumes/.scratch/<uid>/<name>/            scratch volume of an instance
"""

import logging
import os
import pwd
import shutil
import stat
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mandor.agent.journal import replace_file
from mandor.errors import Invalid
from mandor.model.codec import decode_known, encode
from mandor.model.meta import Key
from mandor.model.volume import Volume

log = logging.getLogger(__name__)

_RECORD = "volume.json"
_DATA = "data"
_TRASH = ".trash"
_DRAFTS = ".drafts"
_SCRATCH = ".scratch"
_CAP_SYS_ADMIN = 21


class VolumeRecord(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """The volume of a directory, and the cluster, epoch and version that ordered it."""

    uid: str
    incarnation: int = 0
    cluster: str = ""
    epoch: int = 0
    version: int = 0
    new: bool = False
    """No task has used the volume yet."""

    def is_of(self, volume: Volume) -> bool:
        return (self.uid, self.incarnation) == (volume.meta.uid, volume.status.incarnation)


class VolumeFolders:
    """Volume directories below one directory of the agent; names are object names and never contain paths."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def any(self) -> bool:
        """Whether a volume was ever created."""
        return os.path.exists(self._root)

    def data(self, key: Key) -> Path:
        """Return the data directory of a volume, without symbolic links."""
        return self._root.resolve() / key.namespace / key.name / _DATA

    def record(self, key: Key) -> VolumeRecord | None:
        """Return the record of a volume; None: there is no such volume on this node."""
        folder = self._root / key.namespace / key.name
        try:
            return decode_known((folder / _RECORD).read_bytes(), VolumeRecord) if (folder / _DATA).is_dir() else None
        except FileNotFoundError:
            return None
        except Invalid as error:
            log.error("cannot read the record of the volume %s; it is left as it is: %s", folder, error)
            return None

    def all(self) -> Iterator[tuple[Key, VolumeRecord]]:
        for namespace in _names(self._root):
            for name in () if namespace.startswith(".") else _names(self._root / namespace):
                key = Key(Volume.kind, namespace, name)
                record = self.record(key)
                if record is not None:
                    yield key, record

    def make(self, key: Key, record: VolumeRecord, *, owner: str | None, mode: str) -> Path:
        """Create an empty volume; an existing directory of that name is renamed and kept."""
        draft = self._folder(_DRAFTS) / record.uid
        shutil.rmtree(draft, ignore_errors=True)  # left by a crash
        draft.mkdir(mode=_parent_mode())
        data = draft / _DATA
        data.mkdir()
        data.chmod(int(mode, 8))
        _change_owner(data, owner)
        replace_file(draft / _RECORD, encode(record))
        place = self._folder(key.namespace) / key.name
        if os.path.lexists(place):
            aside = place.with_name(f".{key.name}.{os.stat(place, follow_symlinks=False).st_mtime_ns}")
            log.warning("%s belongs to another volume or to none; renamed to %s", place, aside)
            place.rename(aside)
        draft.rename(place)
        return self.data(key)

    def mark_used(self, key: Key) -> None:
        record = self.record(key)
        if record is not None and record.new:
            replace_file(self._root / key.namespace / key.name / _RECORD, encode(replace(record, new=False)))

    def scratch(self, uid: str, name: str) -> Path:
        return self._root.resolve() / _SCRATCH / uid / name

    def make_scratch(self, folder: Path, *, owner: str | None, mode: str) -> None:
        """Create an empty scratch volume, unless it exists."""
        if folder.is_dir():
            return
        self._folder(_SCRATCH)
        folder.parent.mkdir(mode=_parent_mode(), exist_ok=True)
        folder.mkdir()
        folder.chmod(int(mode, 8))
        _change_owner(folder, owner)

    def has_scratch(self, uid: str) -> bool:
        return os.path.isdir(os.path.join(self._root, _SCRATCH, uid))

    def remove_scratch(self, uid: str) -> None:
        shutil.rmtree(self._root / _SCRATCH / uid, ignore_errors=True)

    def remove(self, key: Key, record: VolumeRecord) -> None:
        """Delete a volume: rename its directory in one step, then delete the files."""
        trash = self._folder(_TRASH)
        place = self._root / key.namespace / key.name
        if self.record(key) == record:
            place.rename(trash / f"{record.uid}.{record.incarnation}")
        self.empty_trash()

    def empty_trash(self) -> None:
        if not os.path.lexists(self._root / _TRASH):
            return  # nothing was ever deleted
        for folder in self._folder(_TRASH).iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, name: str) -> Path:
        for folder in (self._root, self._root / name):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.is_symlink():
                raise OSError(f"{folder} is a symbolic link; volumes must be in directories of the agent")
            if stat.S_IMODE(folder.stat().st_mode) != _parent_mode():
                folder.chmod(_parent_mode())  # created by an earlier version, or with another umask
        return self._root / name


@cache
def _parent_mode() -> int:
    """Return the mode of the directories above volumes: closed, since engines mount a volume by its path.

    An agent that is root and may not mount gives its tasks links, so other users must be able to pass through."""
    return 0o711 if os.geteuid() == 0 and not _may_mount() else 0o700


def _may_mount() -> bool:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    found = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(found, 16) >> _CAP_SYS_ADMIN & 1)


def _names(folder: Path) -> list[str]:
    """Return the names in a directory; empty if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _change_owner(folder: Path, owner: str | None) -> None:
    """Change the owner to a number, `UID:GID` or a user of this machine; does nothing if the agent is not root."""
    if owner is None or os.geteuid() != 0:
        return
    user, _, group = owner.partition(":")
    try:
        uid, gid = (int(user), int(user)) if user.isdecimal() else pwd.getpwnam(user)[2:4]
        os.chown(folder, uid, int(group) if group.isdecimal() else gid)
    except (KeyError, OverflowError):
        log.warning("cannot change the owner of %s: this node has no user %r", folder, owner)
