"""The folders of this node's volumes: made whole or not at all, known for whose they are, deleted only as a whole.

volumes/<namespace>/<name>/volume.json    which volume it is
volumes/<namespace>/<name>/data/          what is in it
volumes/.scratch/<uid>/<name>/            what an instance has for itself while it lives
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
    """Which volume a folder is, and who ordered it when."""

    uid: str
    incarnation: int = 0
    cluster: str = ""
    epoch: int = 0
    version: int = 0

    def is_of(self, volume: Volume) -> bool:
        return (self.uid, self.incarnation) == (volume.meta.uid, volume.status.incarnation)


class VolumeFolders:
    """All below one folder of the agent's own; names are names of objects, and so never paths."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def any(self) -> bool:
        """Whether there has ever been one."""
        return os.path.exists(self._root)

    def data(self, key: Key) -> Path:
        """Where its data is, with no link on the way."""
        return self._root.resolve() / key.namespace / key.name / _DATA

    def record(self, key: Key) -> VolumeRecord | None:
        """None: there is no such volume here."""
        folder = self._root / key.namespace / key.name
        try:
            return decode_known((folder / _RECORD).read_bytes(), VolumeRecord) if (folder / _DATA).is_dir() else None
        except FileNotFoundError:
            return None
        except Invalid as error:
            log.error("the record of the volume %s cannot be read, and it is left alone: %s", folder, error)
            return None

    def all(self) -> Iterator[tuple[Key, VolumeRecord]]:
        for namespace in _names(self._root):
            for name in () if namespace.startswith(".") else _names(self._root / namespace):
                key = Key(Volume.kind, namespace, name)
                record = self.record(key)
                if record is not None:
                    yield key, record

    def make(self, key: Key, record: VolumeRecord, *, owner: str | None, mode: str) -> Path:
        """A new one, empty; an older one of that name is kept under another."""
        draft = self._folder(_DRAFTS) / record.uid
        shutil.rmtree(draft, ignore_errors=True)  # What a crash left half made.
        draft.mkdir(mode=_way_mode())
        data = draft / _DATA
        data.mkdir()
        data.chmod(int(mode, 8))
        _give(data, owner)
        replace_file(draft / _RECORD, encode(record))
        place = self._folder(key.namespace) / key.name
        if os.path.lexists(place):
            aside = place.with_name(f".{key.name}.{os.stat(place, follow_symlinks=False).st_mtime_ns}")
            log.warning("%s is another volume's, or nobody's: it is kept as %s", place, aside)
            place.rename(aside)
        draft.rename(place)
        return self.data(key)

    def scratch(self, uid: str, name: str) -> Path:
        return self._root.resolve() / _SCRATCH / uid / name

    def make_scratch(self, folder: Path, *, owner: str | None, mode: str) -> None:
        """Empty when the instance begins; one that was made before is left as it is."""
        if folder.is_dir():
            return
        self._folder(_SCRATCH)
        folder.parent.mkdir(mode=_way_mode(), exist_ok=True)
        folder.mkdir()
        folder.chmod(int(mode, 8))
        _give(folder, owner)

    def has_scratch(self, uid: str) -> bool:
        return os.path.isdir(os.path.join(self._root, _SCRATCH, uid))

    def remove_scratch(self, uid: str) -> None:
        shutil.rmtree(self._root / _SCRATCH / uid, ignore_errors=True)

    def remove(self, key: Key, record: VolumeRecord) -> None:
        """Out of sight in one step, then piece by piece."""
        trash = self._folder(_TRASH)
        place = self._root / key.namespace / key.name
        if self.record(key) == record:
            place.rename(trash / f"{record.uid}.{record.incarnation}")
        self.empty_trash()

    def empty_trash(self) -> None:
        if not os.path.lexists(self._root / _TRASH):
            return  # nothing was ever thrown away
        for folder in self._folder(_TRASH).iterdir():
            shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, name: str) -> Path:
        for folder in (self._root, self._root / name):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.is_symlink():
                raise OSError(f"{folder} is a link: volumes are kept in folders of the agent's own")
            if stat.S_IMODE(folder.stat().st_mode) != _way_mode():
                folder.chmod(_way_mode())  # made by an earlier version, or by another umask
        return self._root / name


@cache
def _way_mode() -> int:
    """The mode of the folders above volumes: closed, as engines mount a volume by its path.

    An agent that is root and may not mount gives its tasks links: other users have to pass."""
    return 0o711 if os.geteuid() == 0 and not _may_mount() else 0o700


def _may_mount() -> bool:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    found = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(found, 16) >> _CAP_SYS_ADMIN & 1)


def _names(folder: Path) -> list[str]:
    """Of all that is in it, as far as it can be seen."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _give(folder: Path, owner: str | None) -> None:
    """To a number, `UID:GID`, or a user of this machine; only root can, and whom it does not know it does not ask."""
    if owner is None or os.geteuid() != 0:
        return
    user, _, group = owner.partition(":")
    try:
        uid, gid = (int(user), int(user)) if user.isdecimal() else pwd.getpwnam(user)[2:4]
        os.chown(folder, uid, int(group) if group.isdecimal() else gid)
    except (KeyError, OverflowError):
        log.warning("%s: there is no user %r on this node to give it to", folder, owner)
