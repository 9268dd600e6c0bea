"""Refuses to start if other users of the machine can change or read the files of this program."""

from collections.abc import Iterable
from pathlib import Path

from mandor.errors import Invalid
from mandor.lib.owned_file import Unsafe
from mandor.lib.private_path import check_private

SERVER_FILES = ("admin.token", "join.token", "tls/server.pem")
HINT = "or put it below a folder that only this user can enter (chmod 700)"


def check_private_files(folder: Path, secrets: Iterable[str | Path]) -> None:
    """Check the data directory and its secret files; paths of files elsewhere are absolute."""
    try:
        check_private(folder, secrets)
    except Unsafe as error:
        raise Invalid(str(error.strerror), hint=HINT) from error
