"""Packs the files of a task into the archive that the engine copies to a container before its start."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Sequence
from pathlib import PurePosixPath

from mandor.errors import Invalid
from mandor.model.task import File


def make_archive(files: Sequence[File], working_dir: str, *, uid: int, gid: int) -> bytes:
    """Return an archive to be unpacked at `/`; relative paths are below the working directory. The task's user owns the
    files."""
    out = io.BytesIO()
    now = int(time.time())
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for file in files:
            content = file.content.encode()
            entry = tarfile.TarInfo(_inside(file.path, working_dir))
            entry.size, entry.mode, entry.mtime = len(content), int(file.mode, 8), now
            entry.uid, entry.gid = uid, gid
            tar.addfile(entry, io.BytesIO(content))
    return out.getvalue()


def _inside(path: str, working_dir: str) -> str:
    where = PurePosixPath("/", working_dir or "/", path)
    if ".." in where.parts or "\0" in path or len(where.parts) < 2:
        raise Invalid(f"{path!r} is not a valid path of a file")
    return str(where).lstrip("/")


def find_ids(user: str, passwd: str) -> tuple[int, int]:
    """Return the user and group ids of `USER[:GROUP]`; a name is looked up in the /etc/passwd of the image."""
    name, _, group = user.partition(":")
    uid, gid = 0, 0
    if name.isdecimal():
        uid = int(name)
    for line in passwd.splitlines():
        parts = line.split(":")
        if len(parts) > 3 and name in {parts[0], parts[2]} and parts[2].isdecimal() and parts[3].isdecimal():
            uid, gid = int(parts[2]), int(parts[3])
            break
    return uid, int(group) if group.isdecimal() else gid


def read_archived(archive: bytes) -> str:
    """Return the text of the only file in an archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for entry in tar:
            found = tar.extractfile(entry)
            if found is not None:
                return found.read().decode(errors="replace")
    return ""
