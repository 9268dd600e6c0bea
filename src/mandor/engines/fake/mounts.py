"""Mounts of fake units: folders of the node are real, a tmpfs is only counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from mandor.engines.base import Launch, Mount


def find_missing(launch: Launch, exists: Callable[[str], bool]) -> str:
    """Return the error for mounts whose sources do not exist; empty: none."""
    missing = [each for each in launch.mounts if each.source is not None and not exists(each.source)]
    return "; ".join(f"the mount {each.path}: its source {each.source} does not exist on this node" for each in missing)


def read_file(launch: Launch, path: str) -> str | None:
    """Return the text of a file below a mount; None: there is none."""
    mount, rest = _find(launch, path)
    if mount is None or mount.source is None:
        return None
    file = Path(mount.source, rest)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def write_files(writes: dict[str, str], launch: Launch) -> bool:
    """Write files to mounts; False: a file has no mount, a read-only mount, or is too large for its tmpfs."""
    for path, text in writes.items():
        mount, rest = _find(launch, path)
        if mount is None or mount.read_only:
            return False
        if mount.source is None:
            if mount.size_bytes is not None and len(text.encode()) > mount.size_bytes:
                return False
            continue
        file = Path(mount.source, rest)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return True


def _find(launch: Launch, path: str) -> tuple[Mount | None, PurePosixPath]:
    wanted = PurePosixPath(path)
    for mount in reversed(launch.mounts):  # the innermost mount
        if wanted.is_relative_to(mount.path):
            return mount, wanted.relative_to(mount.path)
    return None, wanted
