"""An image in a file: the header sent to a node before the image's bytes."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

NAMES_MOST = 50
Digest = Annotated[str, Bounds(pattern="^sha256:[0-9a-f]{64}$")]
"""Digest of an image's manifest, or of its manifest list, as used by registries."""

ImageKind = Literal["archive", "incus"]
"""Format of an image file. `archive` is a tar file with an OCI layout or from `docker save`; `incus` is an Incus image
in one or two files.
"""
ImageName = Annotated[str, Bounds(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]


class ImageFile(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    kind: ImageKind
    size: Annotated[int, Bounds(ge=1)]
    """Total size of all parts, in bytes."""
    id: Annotated[str, Bounds(pattern="^([0-9a-f]{64})?$")] = ""
    """Identity of the image: for an archive the SHA-256 of its configuration, for an Incus image the SHA-256 of its
    bytes. Empty if unknown or if the file holds several images.
    """
    names: Annotated[tuple[ImageName, ...], Bounds(max_length=NAMES_MOST)] = ()
    """Names given to the image once it is loaded."""
    metadata_bytes: Annotated[int, Bounds(ge=0)] = 0
    """For an Incus image in two files: size of the first file in bytes; the rest is the root file system."""


def tagged(image: str) -> str:
    """Return the image reference with `:latest` added if it has no tag and no digest."""
    return image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"
