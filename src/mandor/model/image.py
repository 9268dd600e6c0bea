"""An image in a file: what a node is told of it before its bytes come."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

NAMES_MOST = 50
Digest = Annotated[str, Bounds(pattern="^sha256:[0-9a-f]{64}$")]
"""What an image is known by in every registry: of its manifest, or of the list of its manifests."""

ImageKind = Literal["archive", "incus"]
"""`archive`: a tar file with an OCI layout or of `docker save`; `incus`: an image of Incus, in one file or in two."""
ImageName = Annotated[str, Bounds(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]*$")]


class ImageFile(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    kind: ImageKind
    size: Annotated[int, Bounds(ge=1)]
    """How many bytes come, of all parts together."""
    id: Annotated[str, Bounds(pattern="^([0-9a-f]{64})?$")] = ""
    """What the image is known by, wherever it is: an archive's is the SHA-256 of its configuration, an Incus image's
    that of its bytes. Empty: unknown, or several images."""
    names: Annotated[tuple[ImageName, ...], Bounds(max_length=NAMES_MOST)] = ()
    """What it is called once it is there."""
    metadata_bytes: Annotated[int, Bounds(ge=0)] = 0
    """Of an Incus image in two files: so many bytes are the first one's, the rest is the root file system."""


def tagged(image: str) -> str:
    """`nginx` is `nginx:latest`."""
    return image if ":" in image.rpartition("/")[2] or "@" in image else f"{image}:latest"
