"""Image files on this machine: their description, and their bytes in the format that nodes expect."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from mandor.client.image_archive import Archive, read_archive
from mandor.errors import Invalid, MandorError, NotFound
from mandor.model.image import ImageFile

BLOCK = 256 << 10
TAR_BLOCK = 512
_SQUASHFS = b"hsqs"
_PACKED: dict[bytes, Callable[[Any], Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open}
"""Decompressors by the first bytes of a file."""


@dataclass(frozen=True, slots=True)
class ImageSource:
    """`image` is the header for the node; `read` yields the announced bytes, any number of times."""

    image: ImageFile
    _parts: tuple[Path, ...]
    _length: int | None = None
    """Length of the tar file without its end, if a file is appended."""
    _added: bytes = b""

    def read(self) -> Iterator[bytes]:
        for path in self._parts:
            with ExitStack() as stack:
                file = stack.enter_context(path.open("rb"))
                content = stack.enter_context(_unpacked(file)) if self.image.kind == "archive" else file
                left = self._length
                while block := content.read(BLOCK if left is None else min(BLOCK, left)):
                    yield block
                    left = None if left is None else left - len(block)
        if self._added:
            yield self._added


def open_image(paths: Sequence[Path], names: Sequence[str] = ()) -> ImageSource:
    """Examine a file, or the two files of an Incus image; raises `Invalid` if it is not an image. `names` are
    additional names.
    """
    try:
        found = _look(paths, names)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise NotFound(f"the file {error.filename} does not exist") from None
        raise Invalid(f"{paths[0]} cannot be read: {error.strerror or error}") from error
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError) as error:
        raise Invalid(f"{paths[0]} is damaged: {error}") from error
    try:
        # Report errors before anything is sent.
        msgspec.convert(msgspec.to_builtins(found.image), ImageFile)
    except msgspec.ValidationError as error:
        raise Invalid(f"{paths[0]}: {error}", hint="`--name` takes names like `shop/web:1.2`") from None
    return found


def _look(paths: Sequence[Path], names: Sequence[str]) -> ImageSource:
    first, *rest = paths
    if rest:
        return _incus(paths, names, metadata_bytes=first.stat().st_size)
    with first.open("rb") as file:
        start = file.read(TAR_BLOCK)
        file.seek(0)
        if start.startswith(_SQUASHFS):
            raise Invalid(
                f"{first} is a root file system without its metadata",
                hint=f"an Incus image in two files: `mandor image load METADATA.tar.xz {first.name}`",
            )
        with _unpacked(file) as content:
            found = _read(content, first)
    if found is None:
        return _incus(paths, names)
    return _archive(first, found, names)


def _read(content: IO[bytes], path: Path) -> Archive | None:
    """Read an archive; None if it is an Incus image."""
    try:
        return read_archive(content)
    except (tarfile.ReadError, gzip.BadGzipFile) as error:
        raise Invalid(
            f"{path} is not a tar file: {error}",
            hint="`docker save`, `podman save` and `skopeo copy` make image archives",
        ) from error
    except MandorError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error


def _incus(paths: Sequence[Path], names: Sequence[str], metadata_bytes: int = 0) -> ImageSource:
    """Describe an Incus image; its fingerprint is the hash of the bytes of both files."""
    if len(paths) > 2:
        raise Invalid("an image consists of one file, or of two: metadata and root file system")
    if not names:
        raise Invalid(f"{paths[0]} is an Incus image without a name", hint="set one with --name NAME")
    digest, size = hashlib.sha256(), 0
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
    image = ImageFile(kind="incus", size=size, id=digest.hexdigest(), names=tuple(names), metadata_bytes=metadata_bytes)
    return ImageSource(image, tuple(paths))


def _archive(path: Path, found: Archive, names: Sequence[str]) -> ImageSource:
    called = tuple(dict.fromkeys((*found.names, *names)))
    if not called:
        raise Invalid(f"the image in {path} has no name", hint="set one with --name shop/web:1.2")
    if names and found.count > 1:
        raise Invalid(f"{path} holds {found.count} images, so --name is ambiguous", hint="load them one by one")
    if not found.described and found.docker is not None:
        described = [{**found.docker, "RepoTags": [_with_tag(name) for name in called]}]
        added = _tar_end("manifest.json", json.dumps(described).encode())
        size = found.end + len(added)
        return ImageSource(_image(found, called, size), (path,), found.end, added)
    return ImageSource(_image(found, called, found.size), (path,))


def _image(found: Archive, names: tuple[str, ...], size: int) -> ImageFile:
    return ImageFile(kind="archive", size=size, id=found.id, names=names)


def _with_tag(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _tar_end(name: str, content: bytes) -> bytes:
    """Return a last file and the end of the archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), 0o644
        tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _unpacked(file: IO[bytes]) -> Any:
    start = file.read(6)
    file.seek(-len(start), os.SEEK_CUR)
    for mark, unpack in _PACKED.items():
        if start.startswith(mark):
            return unpack(file)
    return file
