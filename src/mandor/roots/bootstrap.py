"""The first keys to a new cluster, in files that only their owner can read."""

import os
from pathlib import Path

from mandor.api.auth import make_token, split_token
from mandor.model.meta import Key
from mandor.model.record import Role
from mandor.store.base import Put, Store


async def ensure_key_file(store: Store, path: Path, *, role: Role, identity: str) -> None:
    """A token in a file; a new one when the file or the token is gone."""
    if (known := _token_name(path)) and await store.get(Key("token", "", known)) is not None:
        return
    token, text = make_token(role, identity)
    await store.commit(Put(token))
    _write_secret(path, text)


def _token_name(path: Path) -> str:
    """The public half of the token in the file; empty: no such file, or no token in it."""
    try:
        parts = split_token(path.read_text().strip())
    except FileNotFoundError:
        return ""
    return parts[0] if parts else ""


def _write_secret(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".new")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text + "\n")
    partial.replace(path)
