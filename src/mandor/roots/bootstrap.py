"""What a new store needs: who the cluster is, and the first keys to it."""

import os
from contextlib import suppress
from pathlib import Path

from mandor.api.auth import make_token, split_token
from mandor.api.cluster import KEY, read_cluster
from mandor.errors import Conflict, Invalid
from mandor.lib.ids import new_uid
from mandor.lib.sealing import KEY_BYTES, Sealer
from mandor.model.meta import Key, Meta
from mandor.model.record import Cluster, ClusterSpec, Namespace, Role
from mandor.store.base import Put, Store


async def ensure_cluster(store: Store) -> ClusterSpec:
    """The cluster's id and epoch; an empty store becomes a new cluster with one namespace."""
    for value in (Cluster(meta=Meta(name=KEY.name), spec=ClusterSpec(new_uid())), Namespace(meta=Meta(name="default"))):
        if await store.get(value.key) is None:
            with suppress(Conflict):  # another server was first
                await store.commit(Put(value))
    return await read_cluster(store)


async def ensure_key_file(store: Store, path: Path, *, role: Role, identity: str) -> None:
    """A token in a file; a new one when the file or the token is gone."""
    if (known := _token_name(path)) and await store.get(Key("token", "", known)) is not None:
        return
    token, text = make_token(role, identity)
    await store.commit(Put(token))
    _write_secret(path, text)


def ensure_sealer(path: Path, *, given: bool) -> Sealer:
    """The key in the file; `given`: an administrator named it, so it is there. A new one otherwise."""
    try:
        text = path.read_text().strip()
    except FileNotFoundError:
        if given:
            raise Invalid(f"there is no key for secrets at {path}", hint="`openssl rand -hex 32` makes one") from None
        text = os.urandom(KEY_BYTES).hex()
        _write_secret(path, text)
    try:
        return Sealer(bytes.fromhex(text))
    except ValueError:
        raise Invalid(f"{path} is no key for secrets", hint="`openssl rand -hex 32` makes one") from None


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
