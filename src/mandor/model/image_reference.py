"""Image references: their form, and normalization as in Docker: `nginx` is `docker.io/library/nginx`."""

import re
from collections.abc import Collection

HUB = "docker.io"
_HUB_NAMES = frozenset({"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})


IMAGE_MOST = 512  # characters
_PART = r"[A-Za-z0-9]+(?:(?:\.|_{1,2}|-+|\+)[A-Za-z0-9]+)*"
_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?"
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_DIGEST = r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9A-Fa-f]{32,}"
_REFERENCE = re.compile(rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::{_TAG})?(?:@{_DIGEST})?")
_REMOTE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]*:{_PART}(?:/{_PART})*(?:@{_DIGEST})?")
"""An image of an Incus remote: `images:debian/13`."""
_OCI_ENGINES = frozenset({"docker", "podman", "cri"})


def check_image(image: str, engines: Collection[str] = ()) -> None:
    """Raise `ValueError` for text that no engine can read as an image. `engines`: those that may run it; empty: any."""
    shown = f"{image[:80]!r} is not the name of an image"
    if "://" in image:
        raise ValueError(f"{shown}: leave out `{image.partition('://')[0][:20]}://`")
    if len(image) > IMAGE_MOST:
        raise ValueError(f"{shown}: it has {len(image)} characters; at most {IMAGE_MOST} are allowed")
    reference = _REFERENCE.fullmatch(image)
    oci = bool(engines) and set(engines) <= _OCI_ENGINES
    if not reference and (oci or not _REMOTE.fullmatch(image)):
        raise ValueError(f"{shown}; write [HOST[:PORT]/]NAME[:TAG][@DIGEST], as registry.example/shop:1.4")
    path = repository_of(image).partition("/")[2]
    if oci and path != path.lower():
        raise ValueError(f"{shown}: a repository has no capital letters; write {path.lower()}")


def repository_of(image: str) -> str:
    """Return the full repository of an image: registry host and path, without tag and digest."""
    name = image.partition("@")[0]
    if ":" in name.rpartition("/")[2]:
        name = name.rpartition(":")[0]
    first, slash, rest = name.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, rest = HUB, name
    host = HUB if first.lower() in _HUB_NAMES else first.lower()
    if host == HUB and "/" not in rest:
        rest = f"library/{rest}"
    return f"{host}/{rest}"


def registry_allowed(image: str, allowed: Collection[str]) -> bool:
    """Return whether the image is in one of the allowed registries or repositories.

    An entry is a registry (`ghcr.io`), a path in it (`ghcr.io/acme`), a repository (`docker.io/library/nginx`), or an
    Incus remote with its colon (`images:`).
    """
    if ".." in image.split("/") or "//" in image:
        return False
    repository = repository_of(image)
    for entry in allowed:
        if entry.endswith(":"):
            if image.startswith(entry):
                return True
            continue
        wanted = entry.removeprefix("https://").rstrip("/")
        host, slash, path = wanted.partition("/")
        wanted = (HUB if host.lower() in _HUB_NAMES else host.lower()) + slash + path
        if repository == wanted or repository.startswith(f"{wanted}/"):
            return True
    return False


def pinned(image: str, digest: str) -> str:
    """Return the image reference with its tag replaced by the digest (`sha256:…`)."""
    name = image.partition("@")[0]
    if ":" in name.rpartition("/")[2]:
        name = name.rpartition(":")[0]
    return f"{name}@{digest}"
