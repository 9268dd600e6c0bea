"""Reads the description of an image archive: a tar file with an OCI layout, or from `docker save`."""

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from mandor.errors import Invalid

JSON_MOST = 4 << 20
"""Maximum size of a description that is kept while the archive is read."""
KEPT_MOST = 64 << 20
_HASH = re.compile(r"([0-9a-f]{64})(?:\.json)?$")
_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
_INDEX = {"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    names: tuple[str, ...]
    count: int
    """Number of images."""
    id: str = ""
    """Hash of the configuration, if the archive holds one image for one platform."""
    described: bool = False
    """Whether the archive has Docker's description (manifest.json), which every engine can read."""
    docker: Mapping[str, Any] | None = None
    """Content of Docker's description, if it is missing and can be made."""
    end: int = 0
    """Offset after the last file."""
    size: int = 0


def read_archive(content: IO[bytes]) -> Archive | None:
    """Read an archive from start to end; None if it is an Incus image."""
    kept: dict[str, bytes] = {}
    end, room = 0, KEPT_MOST
    metadata = rootfs = False
    # Compressed data can only be read forwards.
    with tarfile.open(fileobj=content, mode="r:") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            metadata, rootfs = metadata or name == "metadata.yaml", rootfs or name.split("/")[0].startswith("rootfs")
            if metadata and rootfs:
                return None
            end = member.offset_data + (-(-member.size // 512) * 512 if member.isreg() else 0)
            if member.isreg() and member.size <= min(JSON_MOST, room) and _may_describe(name):
                file = tar.extractfile(member)
                kept[name] = file.read() if file is not None else b""
                room -= member.size
    if metadata:
        raise Invalid("this is the metadata of an Incus image without its root file system", hint="give both files")
    size = content.seek(0, os.SEEK_END)
    if "manifest.json" in kept:
        return _docker(kept, end, size)
    if "index.json" in kept:
        return _oci(kept, end, size)
    raise Invalid(
        "this is a tar file, but no image: it has neither manifest.json (docker) nor index.json (OCI) nor"
        " metadata.yaml (Incus)",
        hint="`docker save`, `podman save` and `skopeo copy` make image archives; `docker export` does not",
    )


def _may_describe(name: str) -> bool:
    return name in {"manifest.json", "index.json"} or name.startswith("blobs/sha256/")


def _docker(kept: Mapping[str, bytes], end: int, size: int) -> Archive:
    images = _json(kept, "manifest.json")
    if not isinstance(images, list) or not images or not all(isinstance(each, dict) for each in images):
        raise Invalid("its manifest.json describes no image")
    names = [str(name) for image in images for name in image.get("RepoTags") or ()]
    match = _HASH.search(str(images[0].get("Config", "")))
    only = match[1] if match and len(images) == 1 else ""
    return Archive(names=tuple(names), count=len(images), id=only, described=True, end=end, size=size)


def _oci(kept: Mapping[str, bytes], end: int, size: int) -> Archive:
    entries = _entries(_json(kept, "index.json"))
    if not entries:
        raise Invalid("its index.json lists no image")
    names = tuple(filter(None, map(_name, entries)))
    if len(entries) > 1 or entries[0].get("mediaType") in _INDEX:
        return Archive(names=names, count=len(entries), end=end, size=size)
    manifest = _json(kept, _path(entries[0]))
    config, layers = manifest.get("config", {}), manifest.get("layers", ())
    docker = {"Config": _path(config), "Layers": [_path(each) for each in layers]}
    return Archive(names=names, count=1, id=_path(config).rpartition("/")[2], docker=docker, end=end, size=size)


def _entries(index: Any) -> list[dict[str, Any]]:
    """Return the images of an index, without attestations and similar entries."""
    listed = index.get("manifests", ()) if isinstance(index, dict) else ()
    found = [each for each in listed if isinstance(each, dict)]
    return [each for each in found if (each.get("platform") or {}).get("os") != "unknown"]


def _name(entry: Mapping[str, Any]) -> str:
    """Return the name of an image; a tag alone does not count."""
    notes = entry.get("annotations") or {}
    found = (str(notes[key]) for key in _NAMES if notes.get(key))
    return next((name for name in found if ":" in name or "/" in name), "")


def _path(entry: Any) -> str:
    digest = str(entry.get("digest", "")) if isinstance(entry, dict) else ""
    method, _, value = digest.partition(":")
    if method != "sha256" or not _HASH.fullmatch(value):
        raise Invalid(f"its description refers to {digest!r}, which is not a SHA-256 digest")
    return f"blobs/sha256/{value}"


def _json(kept: Mapping[str, bytes], name: str) -> Any:
    if name not in kept:
        raise Invalid(f"it has no {name}", hint="check that the file is complete")
    _, _, digest = name.rpartition("blobs/sha256/")
    if name != digest and hashlib.sha256(kept[name]).hexdigest() != digest:
        raise Invalid(f"its part {name} is damaged")
    try:
        return json.loads(kept[name])
    except ValueError as error:
        raise Invalid(f"its {name} is not JSON: {error}") from error
