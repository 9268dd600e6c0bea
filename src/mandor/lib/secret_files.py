"""SecretFiles: the directory of the secret and certificate files that API objects may refer to."""

from pathlib import Path

BYTES_MOST = 64 * 1024


class SecretFiles:
    """`folder` is filled by an administrator; if empty, objects cannot refer to files. Objects give names, not
    paths.
    """

    def __init__(self, folder: str = "") -> None:
        self._folder = Path(folder) if folder else None

    def path(self, name: str) -> Path:
        """Return the path of a file; raises `ValueError` for an invalid name. `/FOLDER/NAME`, as accepted by earlier
        versions, is the same as `NAME`.
        """
        if self._folder is None:
            raise ValueError(
                "secret files are not configured: set `secret_files` to a directory, or use a `kind: secret`"
            )
        given = Path(name)
        if given.is_absolute() and given.parent == self._folder:
            name = given.name
        if not plain_name(name):
            raise ValueError(f"{name[:80]!r} is not the name of a file in the directory `secret_files`")
        return self._folder / name  # Only an administrator writes there, links that lead elsewhere included.

    def read(self, name: str) -> bytes:
        """Read a file; raises `ValueError` or `OSError`."""
        with self.path(name).open("rb") as file:
            found = file.read(BYTES_MOST + 1)
        if len(found) > BYTES_MOST:
            raise ValueError(f"{name} has more than {BYTES_MOST} bytes")
        return found


def plain_name(name: str) -> bool:
    """Return whether this is the name of a file, not a path."""
    return 0 < len(name) <= 255 and not name.startswith(".") and not any(letter in "/\\\0" for letter in name)


NO_FILES = SecretFiles()
