"""Writes files of the server's data directory that only this user can read."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mandor.errors import Unavailable

HINT = "free some space on its disk, or make the folder writable"


def write_secret(path: Path, text: str) -> None:
    """Replace the file, durably; raise `Unavailable` if it cannot be written, and then keep the old one."""
    with replacing(path, text):
        pass


@contextmanager
def replacing(path: Path, text: str) -> Iterator[None]:
    """Write the text beside the file, and put it in its place when the block ends without an error.

    A disk that is full is found before the block begins.
    """
    partial = path.with_suffix(".new")
    try:
        with _reported(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
        yield
        with _reported(path):
            partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {(error.strerror or str(error)).lower()}", hint=HINT) from error
