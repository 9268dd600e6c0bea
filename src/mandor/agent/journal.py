"""The agent's state on disk: orders, cluster, credential and keys, for restarts without a control plane."""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from mandor.agent.order import Entry
from mandor.errors import Invalid, Unavailable
from mandor.model.codec import decode_known, encode

T = TypeVar("T")
log = logging.getLogger(__name__)

_SUFFIX = ".json"
_BAD = ".bad"
_PRIVATE = 0o600
_LINE_BYTES = 127
SECRET_FILES = ("credential", "credential.next", "sealing.key", "node.key", "node.key.next", "node.pem")


class Blocking(Protocol):
    """Runs a blocking function without blocking the event loop."""

    def __call__(self, work: Callable[..., Any], /, *args: Any) -> Awaitable[Any]: ...


class ClusterMembership(Struct, frozen=True, gc=False, omit_defaults=True):
    """The cluster that this agent belongs to."""

    id: str
    epoch: int = 1


class SeenRevision(Struct, frozen=True, gc=False, omit_defaults=True):
    """The highest revision of orders that this agent has seen; an older list may contain instances that have ended."""

    cluster: str = ""
    epoch: int = 1
    revision: int = 0


class LastContact(Struct, frozen=True, gc=False, omit_defaults=True):
    """Time of the last answer of the control plane, on the monotonic clock of one boot."""

    boot: str
    monotonic: float


class Journal:
    """One file per instance, replaced atomically; a damaged file is renamed and not used."""

    def __init__(self, folder: Path, *, draft: str = ".new") -> None:
        """`draft`: suffix of temporary files; each process that writes has its own."""
        self._folder, self._draft = folder, draft
        self._orders = folder / "orders"
        self._orders.mkdir(parents=True, exist_ok=True, mode=0o700)

    def entries(self) -> Iterator[Entry]:
        for path in sorted(self._orders.glob(f"*{_SUFFIX}")):
            entry = self._read(path, Entry)
            if entry is None:
                continue
            if entry.order.uid != path.name.removesuffix(_SUFFIX):
                self._set_aside(path, f"it contains the order of {entry.order.uid!r}")
                continue
            yield entry

    def stamps(self) -> Mapping[str, object]:
        """Return a value by uid that changes with each write of the entry."""
        found: dict[str, object] = {}
        with suppress(FileNotFoundError), os.scandir(self._orders) as listed:
            for each in listed:
                if each.name.endswith(_SUFFIX):
                    with suppress(FileNotFoundError):
                        stat = each.stat()
                        found[each.name.removesuffix(_SUFFIX)] = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        return found

    def peek(self, uid: str) -> Entry | None:
        """Return an entry without renaming a damaged file; None: there is none, or it cannot be read."""
        try:
            return decode_known(self._path(uid).read_bytes(), Entry)
        except (OSError, Invalid, ValueError, TypeError):
            return None

    def write(self, entry: Entry) -> None:
        """Write an entry; it is on disk when this returns."""
        replace_file(self._path(entry.order.uid), encode(entry), draft=self._draft)

    def forget(self, uid: str) -> None:
        self._path(uid).unlink(missing_ok=True)

    @property
    def membership(self) -> ClusterMembership | None:
        return self._read(self._folder / "cluster.json", ClusterMembership)

    def keep_membership(self, membership: ClusterMembership) -> None:
        replace_file(self._folder / "cluster.json", encode(membership))

    @property
    def contact(self) -> LastContact | None:
        """The last contact; None: unknown, or read in the middle of a write."""
        first, *second = self._read_lines("contact.json", LastContact) or [None]
        return first if second in ([], [first]) else None

    def touch(self, contact: LastContact) -> None:
        """Save the last contact."""
        self._write_twice("contact.json", encode(contact))

    @property
    def seen(self) -> SeenRevision | None:
        found = [each for each in self._read_lines("seen.json", SeenRevision) if each is not None]
        return max(found, key=lambda each: (each.epoch, each.revision), default=None)

    def keep_seen(self, seen: SeenRevision) -> None:
        """Save the highest revision of orders; it is on disk when this returns."""
        self._write_twice("seen.json", encode(seen), durable=True)

    def _write_twice(self, name: str, data: bytes, *, durable: bool = False) -> None:
        """Write a small file in place (works on a full disk), twice, so that a reader detects a partial write."""
        handle = os.open(self._folder / name, os.O_WRONLY | os.O_CREAT, _PRIVATE)
        try:
            os.pwrite(handle, 2 * (data.ljust(_LINE_BYTES) + b"\n"), 0)
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)

    def _read_lines(self, name: str, wanted: type[T]) -> list[T | None]:
        """Return the copies of a file that is written twice; None: a damaged one."""
        try:
            lines = (self._folder / name).read_bytes().splitlines()
        except OSError:
            return []
        found: list[T | None] = []
        for line in lines[:2]:
            try:
                found.append(decode_known(line, wanted))
            except (Invalid, ValueError, TypeError):
                found.append(None)
        return found

    @property
    def credential(self) -> str:
        """The node's credential; empty: this agent has not joined yet."""
        return self._text("credential")

    def _text(self, name: str) -> str:
        try:
            return (self._folder / name).read_text(encoding="utf-8").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return ""

    def keep_credential(self, credential: str) -> None:
        """Save a credential; the first one is kept as the sealing key of saved secrets."""
        before = self.credential
        if before and before != credential and not self._text("sealing.key"):
            self._keep("sealing.key", before)
        self._keep("credential", credential)
        if self.next_credential == credential:
            with suppress(FileNotFoundError):
                (self._folder / "node.key.next").replace(self._folder / "node.key")
            (self._folder / "credential.next").unlink()

    @property
    def next_credential(self) -> str:
        """The credential of a renewal under way; empty: there is none."""
        return self._text("credential.next")

    def keep_next_credential(self, credential: str) -> None:
        self._keep("credential.next", credential)

    def node_key(self, make: Callable[[], str], *, following: bool = False) -> str:
        """Return the node's private key (PEM), created on first use; `following`: the key of the next credential."""
        name = "node.key.next" if following else "node.key"
        found = self._text(name)
        if not found:
            found = make().strip()
            self._keep(name, found)
        return found

    @property
    def identity(self) -> Path:
        """Path of the file with the node's key and certificate."""
        return self._folder / "node.pem"

    def keep_identity(self, key: str, certificate: str) -> None:
        self._keep(self.identity.name, f"{key}\n{certificate.strip()}")

    @property
    def authorities(self) -> Path:
        """Path of the file with the trusted certificate authorities of the servers."""
        return self._folder / "ca.pem"

    def keep_authorities(self, bundle: str) -> None:
        if self._text("ca.pem") != bundle.strip():
            self._keep(self.authorities.name, bundle.strip())

    @property
    def sealing_key(self) -> str:
        """The key of saved secrets: known to this node only, and constant while its data directory exists."""
        return self._text("sealing.key") or self.credential

    def _keep(self, name: str, text: str) -> None:
        """Save a credential, key or certificate; on a full disk raise `Unavailable` and keep the old file."""
        try:
            replace_file(self._folder / name, text.encode() + b"\n")
        except OSError as error:
            raise Unavailable(
                f"cannot save {name} in the data directory {self._folder}: {error.strerror or error}",
                hint="free disk space or make the directory writable; the agent retries",
            ) from error

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
            log.error("journal: cannot read %s: %s", path, error)
        return None

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(path.name + _BAD)
        log.error("journal: %s is damaged (%s); renamed to %s and not used", path, why, aside.name)
        try:
            path.replace(aside)
        except OSError as error:
            log.error("journal: cannot rename %s: %s", path, error)


def replace_file(path: Path, data: bytes, *, durable: bool = True, draft: str = ".new") -> None:
    """Replace a file atomically: after a crash it has the old content or the new one."""
    written = path.with_name(path.name + draft)
    handle = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
    with os.fdopen(handle, "wb") as file:
        os.fchmod(handle, _PRIVATE)
        file.write(data)
        file.flush()
        if durable:
            os.fsync(handle)
    written.replace(path)
    if durable:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
