"""Options of a task under `options.incus`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from mandor.errors import Invalid
from mandor.lib.quantity import Size

REMOTES = {
    "images": ("https://images.linuxcontainers.org", "simplestreams"),
    "ubuntu": ("https://cloud-images.ubuntu.com/releases", "simplestreams"),
}
"""Image servers by the prefix of an image name, as in `images:debian/13`."""


class IncusOptions(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["container", "virtual-machine"] = "container"
    """A system container, or a virtual machine if the node supports them."""
    profiles: tuple[str, ...] = ("default",)
    """Incus profiles; later ones override earlier ones, and settings of the task override profiles."""
    config: dict[str, str | int | bool] = {}
    """Keys of Incus' own configuration: `security.nesting`, `limits.cpu.nodes`, `cloud-init.network-config` …"""
    devices: dict[str, dict[str, str | int | bool]] = {}
    """Incus devices by name: `{web: {type: proxy, listen: …, connect: …}}`."""
    user_data: str | None = None
    """cloud-init's user data, for images that have cloud-init."""
    server: str | None = None
    """URL of the image server, for servers without a known prefix (`images:`, `ubuntu:`)."""
    protocol: Literal["simplestreams", "incus"] | None = None
    """Protocol of that server."""
    server_certificate: str | None = None
    """Certificate of that server (PEM), if no authority that the node trusts has signed it."""
    pool: str | None = None
    """The storage pool of its root disk; absent: the profile's."""
    privileged: bool = False
    """Runs without a user namespace: root inside is root of the node."""
    log_size: Size = Size(10 * 1024 * 1024)
    """Size at which a log file is rotated."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """Number of rotated log files that are kept."""


def source_of(image: str, options: IncusOptions) -> dict[str, Any]:
    """Return the image source for Incus: a local alias or fingerprint, or an image of a server.

    `NAME@sha256:FINGERPRINT` is an image that a release has pinned."""
    image, _, digest = image.partition("@")
    fingerprint = digest.removeprefix("sha256:")
    remote, colon, alias = image.partition(":")
    if options.server is not None:
        named = alias if colon else image
        found = _remote(options.server, options.protocol or "simplestreams", named, fingerprint)
        return found | ({"certificate": options.server_certificate} if options.server_certificate else {})
    if colon and remote == "local":
        image = alias
    elif remote in REMOTES and (colon or fingerprint):
        return _remote(*REMOTES[remote], alias, fingerprint)
    elif colon:
        raise Invalid(
            f"the image {image} names an unknown server {remote!r}",
            hint=f"use local, {', '.join(REMOTES)}; or write options.incus.server: https://…",
        )
    if fingerprint:
        return {"type": "image", "fingerprint": fingerprint}
    if len(image) >= 12 and all(each in "0123456789abcdef" for each in image):
        return {"type": "image", "fingerprint": image}
    return {"type": "image", "alias": image}


def _remote(server: str, protocol: str, alias: str, fingerprint: str) -> dict[str, Any]:
    wanted = {"fingerprint": fingerprint} if fingerprint else {"alias": alias}
    return {"type": "image", "mode": "pull", "server": server, "protocol": protocol} | wanted
