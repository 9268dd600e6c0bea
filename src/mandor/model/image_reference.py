"""Normalization of image references as in Docker: `nginx` is `docker.io/library/nginx`."""

from collections.abc import Collection

HUB = "docker.io"
_HUB_NAMES = frozenset({"index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})


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
