"""SecretFiles: the one folder from which secrets and certificates are read that an API object names."""

from pathlib import Path

BYTES_MOST = 64 * 1024


class SecretFiles:
    """`folder`: where an administrator puts them; None: no object may name a file. Objects name files, not paths."""

    def __init__(self, folder: str = "") -> None:
        self._folder = Path(folder) if folder else None

    def path(self, name: str) -> Path:
        """The file of that name; `ValueError` for what is no name of a file there. `/FOLDER/NAME`, as it was written
        before there was a folder, is the same as `NAME`."""
        if self._folder is None:
            raise ValueError(
                "this program reads no secret files: set `secret_files` to a folder, or use a `kind: secret`"
            )
        given = Path(name)
        if given.is_absolute() and given.parent == self._folder:
            name = given.name
        if not plain_name(name):
            raise ValueError(f"{name[:80]!r} is no name of a file in the folder `secret_files`")
        return self._folder / name  # Only an administrator writes there, links that lead elsewhere included.

    def read(self, name: str) -> bytes:
        """`ValueError` or `OSError` for what cannot be read."""
        with self.path(name).open("rb") as file:
            found = file.read(BYTES_MOST + 1)
        if len(found) > BYTES_MOST:
            raise ValueError(f"{name} has more than {BYTES_MOST} bytes: no secret")
        return found


def plain_name(name: str) -> bool:
    """Whether this is a name of a file, and no path."""
    return 0 < len(name) <= 255 and not name.startswith(".") and not any(letter in "/\\\0" for letter in name)


NO_FILES = SecretFiles()
