"""A lock between processes that the kernel releases when its holder dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class LockHeld(Exception):
    """Another process holds the lock; `holder` is its process id, if known."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"process {holder or '?'} holds {path}")
        self.holder = holder


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Hold the lock file for the block; raises `LockHeld` if another process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockHeld(path, os.pread(handle, 64, 0).decode(errors="replace").strip()) from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)
