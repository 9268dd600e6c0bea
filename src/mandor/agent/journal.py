"""The agent's orders on its own disk: what survives a restart, a reboot and a lost control plane."""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from mandor.agent.order import Entry
from mandor.errors import Invalid
from mandor.model.codec import decode_known, encode

T = TypeVar("T")
log = logging.getLogger(__name__)

_SUFFIX = ".json"
_BAD = ".bad"
_PRIVATE = 0o600


class Blocking(Protocol):
    """Runs what waits for a disk without holding up everybody else."""

    def __call__(self, work: Callable[..., Any], /, *args: Any) -> Awaitable[Any]: ...


class Belonging(Struct, frozen=True, gc=False, omit_defaults=True):
    """The cluster this agent belongs to, as far as it has heard."""

    id: str
    epoch: int = 1
    revision: int = 0
    """The highest revision heard of: a store that shows a lower one has lost something."""


class Contact(Struct, frozen=True, gc=False, omit_defaults=True):
    """When the control plane last answered, on the clock of one boot of this machine."""

    boot: str
    monotonic: float


class Journal:
    """One file an instance, replaced whole; a file that cannot be read is set aside, never fatal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._orders = folder / "orders"
        self._orders.mkdir(parents=True, exist_ok=True, mode=0o700)

    def entries(self) -> Iterator[Entry]:
        for path in sorted(self._orders.glob(f"*{_SUFFIX}")):
            entry = self._read(path, Entry)
            if entry is None:
                continue
            if entry.order.uid != path.name.removesuffix(_SUFFIX):
                self._set_aside(path, f"it speaks of {entry.order.uid!r}")
                continue
            yield entry

    def write(self, entry: Entry) -> None:
        """On disk when this returns."""
        replace_file(self._path(entry.order.uid), encode(entry))

    def forget(self, uid: str) -> None:
        self._path(uid).unlink(missing_ok=True)

    @property
    def belonging(self) -> Belonging | None:
        return self._read(self._folder / "cluster.json", Belonging)

    def belong(self, belonging: Belonging) -> None:
        replace_file(self._folder / "cluster.json", encode(belonging))

    @property
    def contact(self) -> Contact | None:
        return self._read(self._folder / "contact.json", Contact)

    def touch(self, contact: Contact) -> None:
        replace_file(self._folder / "contact.json", encode(contact), durable=False)

    @property
    def credential(self) -> str:
        """Empty: this agent has not joined yet."""
        return self._text("credential")

    def _text(self, name: str) -> str:
        try:
            return (self._folder / name).read_text(encoding="utf-8").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def keep_credential(self, credential: str) -> None:
        """The one it had stays the key of what was sealed with it."""
        before = self.credential
        if before and before != credential and not self._text("sealing.key"):
            replace_file(self._folder / "sealing.key", before.encode() + b"\n")
        replace_file(self._folder / "credential", credential.encode() + b"\n")
        if self.next_credential == credential:
            (self._folder / "credential.next").unlink()

    @property
    def next_credential(self) -> str:
        """The one that the servers were told, or are to be told, to take from now on; empty: none."""
        return self._text("credential.next")

    def keep_next_credential(self, credential: str) -> None:
        replace_file(self._folder / "credential.next", credential.encode() + b"\n")

    @property
    def sealing_key(self) -> str:
        """Known to this node alone, and the same for as long as it has its folder."""
        return self._text("sealing.key") or self.credential

    def _path(self, uid: str) -> Path:
        if not uid or "/" in uid or uid.startswith("."):
            raise Invalid(f"{uid!r} is not a uid")
        return self._orders / (uid + _SUFFIX)

    def _read(self, path: Path, wanted: type[T]) -> T | None:
        try:
            return decode_known(path.read_bytes(), wanted)
        except FileNotFoundError:
            return None
        except (Invalid, ValueError, TypeError) as error:
            self._set_aside(path, str(error))
        except OSError as error:
            log.error("journal: %s cannot be read: %s", path, error)
        return None

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(path.name + _BAD)
        log.error("journal: %s is damaged (%s); it is kept as %s and not used", path, why, aside.name)
        try:
            path.replace(aside)
        except OSError as error:
            log.error("journal: %s cannot be set aside: %s", path, error)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """The old content or the new one, never half of it, whenever the power goes."""
    draft = path.with_name(path.name + ".new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, _PRIVATE)
        file.write(data)
        file.flush()
        if durable:
            os.fsync(handle)
    draft.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
