"""Storage of logins: ID and refresh tokens by server, in a file readable only by the user."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from mandor.errors import Invalid

FILE = "logins.json"


def config_folder() -> Path:
    """Return the directory `mandor` in the user's configuration directory."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "mandor"


def read_login(server: str) -> dict[str, Any] | None:
    return _read_all().get(_key(server))


def write_login(server: str, login: dict[str, Any] | None) -> None:
    """Store the login for this server; None deletes it."""
    found = _read_all()
    if login is None:
        found.pop(_key(server), None)
    else:
        found[_key(server)] = login
    folder = config_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A new file, readable only by the user from its first byte, replaces the old one.
    handle, name = tempfile.mkstemp(dir=folder, prefix=".logins-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(name, folder / FILE)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _key(server: str) -> str:
    return server.rstrip("/")


def _read_all() -> dict[str, dict[str, Any]]:
    path = config_folder() / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Invalid(f"cannot read the logins in {path}: {error}", hint="delete the file and log in again") from error
    if path.stat().st_mode & 0o077:
        raise Invalid(f"others may read the logins in {path}", hint=f"`chmod 600 {path}`, and log in again")
    return found if isinstance(found, dict) else {}
