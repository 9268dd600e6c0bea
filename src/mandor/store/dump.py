"""Portable backups: the state of a cluster in a file that can be restored into any type of store.

gzip'd JSON lines: a header, then the objects in order of their keys, then a line with their number
and the SHA-256 of all before it. Servers, leases, hearings, tallies and sessions are excluded: they belong to
running processes.
"""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Literal, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from mandor.errors import Conflict, Invalid, Unsupported
from mandor.model.codec import decode, decode_as, encode
from mandor.model.meta import Object
from mandor.model.record import Cluster, ClusterSpec, HeartbeatSummary, Lease, Server, Session
from mandor.model.usage import UsageSummary
from mandor.store.base import WRITES_MOST, Delete, Put, Store, Write

EXCLUDED_KINDS = frozenset({Lease.kind, HeartbeatSummary.kind, UsageSummary.kind, Session.kind, Server.kind})
FORMAT: Final = "mandor-dump/1"
CHUNK = 100
"""Objects per step, between which other tasks run."""
LINE_BYTES_MOST = 4 << 20


class Header(Struct, frozen=True, omit_defaults=True, kw_only=True):
    format: Literal["mandor-dump/1"]
    cluster: str = ""
    epoch: int = 0
    revision: int
    """Revision of the source store at which the backup was taken."""


class Trailer(Struct, frozen=True, kw_only=True):
    objects: int
    sha256: str


@runtime_checkable
class Restorable(Protocol):
    """A store whose revision can be raised, so that versions of the old store are not reused."""

    async def skip_to(self, revision: int) -> None: ...


# Writing.


async def dump(store: Store) -> AsyncIterator[bytes]:
    """Yield the backup in pieces, all of one revision, while the store is in use."""
    listing = await store.list(None)
    cluster = next((item for item in (await store.list(Cluster.kind)).items if isinstance(item, Cluster)), None)
    spec = cluster.spec if cluster is not None else ClusterSpec(id="", epoch=0)
    packer = _Packer()
    yield packer.pack([Header(format=FORMAT, cluster=spec.id, epoch=spec.epoch, revision=listing.revision)])
    count = 0
    for start in range(0, len(listing.items), CHUNK):
        chunk = [item for item in listing.items[start : start + CHUNK] if item.kind not in EXCLUDED_KINDS]
        count += len(chunk)
        yield packer.pack(chunk)
        await asyncio.sleep(0)
    yield packer.finish(count)


async def write_dump(store: Store, file: BinaryIO) -> None:
    """Write the backup to a file."""
    async for piece in dump(store):
        await asyncio.to_thread(file.write, piece)


class _Packer:
    def __init__(self) -> None:
        self._zip = zlib.compressobj(level=6, wbits=31)
        self._hash = hashlib.sha256()

    def pack(self, values: "list[Object] | list[Header]") -> bytes:
        data = b"".join(encode(value) + b"\n" for value in values)
        self._hash.update(data)
        return self._zip.compress(data)

    def finish(self, count: int) -> bytes:
        line = msgspec.json.encode(Trailer(objects=count, sha256=self._hash.hexdigest())) + b"\n"
        return self._zip.compress(line) + self._zip.flush()


# Reading.


class Dump:
    """A backup that is being read: the header at once, the objects one by one.

    The checksum is at the end, so damage may be detected only after the last object.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._lines = _lines(file)
        self._hash = hashlib.sha256()
        line = next(self._lines, b"")
        self._hash.update(line)
        try:
            self.header = decode_as(line, Header)
        except Invalid as error:
            raise Invalid("the file is not a backup of mandor", hint="`mandor backup FILE` makes one") from error

    def __iter__(self) -> Iterator[Object]:
        for count, line in enumerate(self._lines):
            if line.startswith(b'{"objects":'):
                self._check(decode_as(line, Trailer), count)
                return
            self._hash.update(line)
            yield decode(line)
        raise Invalid("the backup is truncated", hint="copy it again, or use an earlier one")

    def _check(self, trailer: Trailer, count: int) -> None:
        if trailer.objects != count or trailer.sha256 != self._hash.hexdigest():
            raise Invalid("the backup is damaged: its checksum does not match", hint="use another backup")
        if next(self._lines, b""):
            raise Invalid("the backup has data after its end", hint="use another backup")


def read_dump(file: BinaryIO) -> Dump:
    """Start reading a backup; raise `Invalid` if it is not one, and while reading if it is damaged."""
    return Dump(file)


def count_objects(path: Path) -> int:
    """Return the number of objects; raise `Invalid` if the backup is damaged."""
    with path.open("rb") as file:
        return sum(1 for _ in read_dump(file))


def _lines(file: BinaryIO) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=31)
    left = b""
    try:
        while not unpacker.eof:
            piece = unpacker.unconsumed_tail or file.read(1 << 16)
            if not piece:
                break
            left += unpacker.decompress(piece, 1 << 20)
            *lines, left = left.split(b"\n")
            yield from (line + b"\n" for line in lines)
            if len(left) > LINE_BYTES_MOST:
                raise Invalid(f"the backup has a line of more than {LINE_BYTES_MOST} bytes")
    except zlib.error as error:
        raise Invalid(
            f"the backup cannot be decompressed: {error}", hint="copy it again, or use another one"
        ) from error
    if left:
        yield left


async def load_dump(store: Store, file: BinaryIO) -> Header:
    """Fill an empty store from a backup. The cluster id stays the same, its epoch and revision increase.

    The file is read twice: nothing is written before its checksum has been verified.
    """
    if not isinstance(store, Restorable):
        raise Unsupported("this store cannot be restored", hint="restore into sqlite: or etcd:, with no server running")
    backup = read_dump(file)
    for _ in backup:
        pass
    file.seek(0)
    await _make_empty(store)
    backup = read_dump(file)
    await fill(store, backup, backup.header.revision)
    return backup.header


async def fill(store: Store, items: Iterable[Object], revision: int) -> None:
    """Write objects into an empty store, with revisions after this one and a raised epoch.

    The cluster object is written last: a store that was filled only partly belongs to no cluster.
    """
    assert isinstance(store, Restorable)
    await store.skip_to(revision)
    clusters: list[Object] = []
    batch: list[Write] = []
    for item in items:
        if isinstance(item, Cluster):
            raised = msgspec.structs.replace(item.spec, epoch=item.spec.epoch + 1)
            clusters.append(item.changed(spec=raised))
            continue
        batch.append(Put(_fresh(item)))
        if len(batch) == WRITES_MOST:
            await store.commit(*batch)
            batch = []
    batch += [Put(_fresh(item)) for item in clusters]
    if batch:
        await store.commit(*batch)


def _fresh(item: Object) -> Object:
    """Return the same object, with its uid, as new to this store."""
    return item.changed(meta=msgspec.structs.replace(item.meta, version=0))


async def _make_empty(store: Store) -> None:
    """Delete the objects that backups exclude; raise `Conflict` if there are others."""
    items = (await store.list(None)).items
    others = [item for item in items if item.kind not in EXCLUDED_KINDS]
    if others:
        raise Conflict(
            f"the store is not empty: it holds {len(others)} objects, for example {others[0].key}",
            hint="restore into an empty store",
        )
    for start in range(0, len(items), WRITES_MOST):
        chunk = items[start : start + WRITES_MOST]
        await store.commit(*[Delete(item.key, item.meta.version) for item in chunk])
