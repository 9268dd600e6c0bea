"""Marker: a small file beside the store that names its cluster and the highest revision known to be stored.

The file has two slots that are written in turn, each with a checksum. A slot is written after a commit is durable and
before it is acknowledged, without fsync: it survives the death of the process. Once a second it is synced, so after a
power failure it may lag by the commits of about one second. It is never ahead of the store.
"""

import os
import zlib
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from mandor.errors import Invalid

FORMAT: Final = "mandor-marker/1"
SLOT_BYTES = 512
NAME = "cluster.marker"


class MarkerContent(Struct, frozen=True, kw_only=True):
    """Cluster, epoch and revision that a server last saw in its store."""

    format: Literal["mandor-marker/1"] = FORMAT
    cluster: str
    epoch: int
    revision: int


class Marker:
    """The open marker file. `raise_to` is cheap enough for every commit."""

    def __init__(self, path: Path, first: MarkerContent) -> None:
        """Create the file, or continue the one that is there."""
        self._path = path
        if not path.exists():
            _create(path, first)
        self._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._slot = 0
        self._synced = 0
        self.known = first
        self.trouble = ""
        """Reason why the last write failed; empty: it succeeded."""
        self._write(first)
        self._write(first)
        self.sync()

    def raise_to(self, revision: int) -> None:
        """Write this revision to the file if it is higher."""
        if revision > self.known.revision:
            known = self.known
            self._write(MarkerContent(cluster=known.cluster, epoch=known.epoch, revision=revision))

    def sync(self) -> None:
        """Wait until the file is on disk; blocks."""
        revision = self.known.revision
        if self._synced != revision:
            try:
                os.fdatasync(self._handle)
                self._synced = revision
            except OSError as error:
                self.trouble = f"cannot write {self._path}: {error.strerror}"

    def close(self) -> None:
        self.sync()
        os.close(self._handle)

    def _write(self, known: MarkerContent) -> None:
        self.known = known
        try:
            os.pwrite(self._handle, _packed(known), self._slot * SLOT_BYTES)
            self.trouble = ""
        except OSError as error:
            self.trouble = f"cannot write {self._path}: {error.strerror}"
        self._slot = 1 - self._slot


def read_marker(path: Path) -> MarkerContent | None:
    """Return the newest valid slot, or None without a file; raise `Invalid` if no slot is valid."""
    try:
        data = path.read_bytes()[: 2 * SLOT_BYTES]
    except FileNotFoundError:
        return None
    slots = (_unpacked(data[:SLOT_BYTES]), _unpacked(data[SLOT_BYTES:]))
    valid = [slot for slot in slots if slot is not None]
    if not valid:
        raise Invalid(
            f"{path} is damaged: whether the store holds everything that was written cannot be checked",
            hint="`mandor recover` examines the store and writes a new marker",
        )
    return max(valid, key=lambda slot: (slot.epoch, slot.revision))


def write_marker(path: Path, known: MarkerContent) -> None:
    """Replace the file durably."""
    path.unlink(missing_ok=True)
    _create(path, known)


def _packed(known: MarkerContent) -> bytes:
    line = msgspec.json.encode(known)
    return (line + b"\n%08x" % zlib.crc32(line)).ljust(SLOT_BYTES - 1) + b"\n"


def _unpacked(slot: bytes) -> MarkerContent | None:
    line, _, rest = slot.partition(b"\n")
    if rest.strip() != b"%08x" % zlib.crc32(line):
        return None
    try:
        return msgspec.json.decode(line, type=MarkerContent)
    except msgspec.DecodeError:
        return None


def _create(path: Path, known: MarkerContent) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".new")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(_packed(known) * 2)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make created and renamed files of a folder durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
