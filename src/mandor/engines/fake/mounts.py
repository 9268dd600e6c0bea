"""The mounts of fake units: folders of the node are real, memory is nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

from mandor.engines.base import Launch, Mount


def find_missing(launch: Launch, exists: Callable[[str], bool]) -> str:
    """Why the launch's mounts cannot be made, if they cannot."""
    missing = [each for each in launch.mounts if each.source is not None and not exists(each.source)]
    return "; ".join(f"the mount {each.path}: there is no {each.source} on this node" for each in missing)


def read_file(launch: Launch, path: str) -> str | None:
    """What is in a file below one of its mounts."""
    mount, rest = _find(launch, path)
    if mount is None or mount.source is None:
        return None
    file = Path(mount.source, rest)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def write_files(writes: dict[str, str], launch: Launch) -> bool:
    """False: there is nowhere to write one of them, it is read-only, or too large for a tmpfs."""
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
    for mount in reversed(launch.mounts):  # the innermost
        if wanted.is_relative_to(mount.path):
            return mount, wanted.relative_to(mount.path)
    return None, wanted
