"""Loads images from files into Incus: one file as it is, two files as a form; then sets their aliases."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from typing import Any
from urllib.parse import quote

from mandor.engines.containers.loading import cannot_load
from mandor.engines.incus.client import IncusClient, Refused
from mandor.model.image import ImageFile

_QCOW2 = b"QFI\xfb"


async def load(api: IncusClient, image: ImageFile, content: AsyncIterator[bytes]) -> bool:
    """Load an image; return whether it, or one of its names, is new."""
    try:
        there = bool(image.id) and await _exists(api, image.id)
        fingerprint = image.id if there else await _upload(api, image, content)
        named = [await _name(api, name, fingerprint) for name in image.names]
    except Refused as error:
        raise cannot_load("incus", error.message) from error
    return not there or any(named)


async def _exists(api: IncusClient, fingerprint: str) -> bool:
    try:
        await api.get(f"/1.0/images/{fingerprint}")
    except Refused as error:
        if error.unknown:
            return False
        raise
    return True


async def _upload(api: IncusClient, image: ImageFile, content: AsyncIterator[bytes]) -> str:
    boundary, kind = secrets.token_hex(16), "application/octet-stream"
    if image.metadata_bytes:
        content, kind = _form(content, image.metadata_bytes, boundary), f"multipart/form-data; boundary={boundary}"
    begun = await api.call("POST", "/1.0/images", data=content, headers={"Content-Type": kind})
    made = await api.finish(begun)
    return str(made.get("fingerprint") or image.id)


async def _name(api: IncusClient, name: str, fingerprint: str) -> bool:
    """Set an alias and return whether it is new; an alias of another image is moved."""
    path = f"/1.0/images/aliases/{quote(name, safe='')}"
    try:
        known = await api.get(path)
    except Refused as error:
        if not error.unknown:
            raise
        await api.call("POST", "/1.0/images/aliases", {"name": name, "target": fingerprint})
        return True
    if known["target"] == fingerprint:
        return False
    await api.call("PUT", path, {"target": fingerprint, "description": known.get("description", "")})
    return True


async def _form(content: AsyncIterator[bytes], metadata_bytes: int, boundary: str) -> AsyncIterator[bytes]:
    """Yield the first `metadata_bytes` bytes and the rest as two fields of a form."""
    left, second = metadata_bytes, False
    yield _field(boundary, "metadata")
    async for piece in content:
        yield piece[:left]
        rest, left = piece[left:], max(0, left - len(piece))
        if rest and not second:
            second = True
            # The disk of a virtual machine has another field name than the files of a container.
            yield b"\r\n" + _field(boundary, "rootfs.img" if rest.startswith(_QCOW2) else "rootfs")
        yield rest
    yield f"\r\n--{boundary}--\r\n".encode()


def _field(boundary: str, name: str) -> bytes:
    lines = [
        f"--{boundary}",
        f'Content-Disposition: form-data; name="{name}"; filename="{name}"',
        "Content-Type: application/octet-stream",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def spare_images(found: Iterable[Mapping[str, Any]], keep: Collection[str]) -> list[Mapping[str, Any]]:
    """Return the images that Incus pulled for an instance and that have no alias, the least recently used first."""
    kept = {name.partition(":")[2] or name for name in keep}
    spare = [
        each
        for each in found
        if each.get("cached") and not each.get("aliases") and each["update_source"].get("alias") not in kept
    ]
    return sorted(spare, key=lambda each: str(each.get("last_used_at", "")))
