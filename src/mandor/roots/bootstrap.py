"""What a store needs before the first request: who the cluster is, and the first keys to it."""

import os
from pathlib import Path

from mandor.api.auth import make_token, split_token
from mandor.errors import Conflict
from mandor.lib.ids import new_uid
from mandor.model.meta import Key, Meta, Object
from mandor.model.record import Cluster, ClusterSpec, Namespace, Role
from mandor.store.base import Put, Store

CLUSTER_KEY = Key("cluster", "", "cluster")


async def ensure_cluster(store: Store) -> Cluster:
    """The cluster's own object and the default namespace, made once by whoever comes first."""
    await _once(store, Cluster(meta=Meta(name="cluster"), spec=ClusterSpec(id=new_uid())))
    await _once(store, Namespace(meta=Meta(name="default")))
    found = await store.get(CLUSTER_KEY)
    assert isinstance(found, Cluster)
    return found


async def ensure_key_file(store: Store, path: Path, *, role: Role, identity: str) -> None:
    """A token in a file that only its owner can read; a new one when the file or the token is gone."""
    if (known := _token_id(path)) and await store.get(Key("token", "", known)) is not None:
        return
    token, text = make_token(role, identity)
    await store.commit(Put(token))
    _write_secret(path, text)


def _token_id(path: Path) -> str:
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


async def _once(store: Store, value: Object) -> None:
    if await store.get(value.key) is None:
        try:
            await store.commit(Put(value))
        except Conflict:
            return  # another server was faster
