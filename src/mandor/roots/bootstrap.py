"""Creates the objects of a new store: the cluster's id and epoch, a namespace, and the key that seals secrets."""

import asyncio
import time
from contextlib import suppress

from msgspec.structs import replace

from mandor.api.cluster import KEY, read_cluster
from mandor.api.sealed_values import SEALED, key_ids
from mandor.api.secret_keys import new_key
from mandor.api.user_range import with_users
from mandor.errors import Conflict, Invalid
from mandor.lib.ids import new_uid
from mandor.lib.sealing import KeyRing, key_id_of
from mandor.model.level import Level
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Meta
from mandor.model.record import Cluster, ClusterSpec, ClusterStatus, Namespace, NamespaceSpec
from mandor.model.secret import Secret
from mandor.roots.master_key import make_master, read_master
from mandor.roots.settings import ServerSettings
from mandor.store.base import Put, Store


async def ensure_cluster(store: Store, level: Level = "restricted", master: KeyRing | None = None) -> ClusterSpec:
    """Return the cluster's id and epoch. An empty store becomes a new cluster with one namespace, `default`, of this
    level, and a data key under this master key."""
    spec = ClusterSpec(new_uid())
    keys = (new_key(master, spec.id, time.time()),) if master is not None else ()
    cluster = Cluster(meta=Meta(name=KEY.name), spec=spec, status=ClusterStatus(keys=keys))
    if await store.get(cluster.key) is None:
        with suppress(Conflict):  # another server was first
            await store.commit(Put(cluster))
    default = Namespace(meta=Meta(name=DEFAULT_NAMESPACE), spec=NamespaceSpec(level=level))
    while await store.get(default.key) is None:
        with suppress(Conflict):
            writes, along = await with_users(store, [Put(default)])
            await store.commit(*writes, *along)
    return await read_cluster(store)


async def raise_epoch(store: Store, epoch: int) -> ClusterSpec:
    """Give the cluster this epoch, unless another server has given it a later one."""
    while True:
        cluster = await store.get(KEY)
        if not isinstance(cluster, Cluster) or cluster.spec.epoch >= epoch:
            return await read_cluster(store)
        with suppress(Conflict):
            await store.commit(Put(cluster.changed(spec=replace(cluster.spec, epoch=epoch))))


async def ensure_master(store: Store, settings: ServerSettings) -> KeyRing:
    """Return this server's master keys; a new key is made only if the store holds no secret that was sealed with
    another."""
    path = settings.secrets_key_file
    master = await asyncio.to_thread(
        read_master, path, given=bool(settings.secrets_key), command=settings.secrets_key_command
    )
    if master is not None:
        return master
    found = await store.get(KEY)
    keys = found.status.keys if isinstance(found, Cluster) else ()
    sealed = [each for kind in SEALED for each in (await store.list(kind)).items if key_ids(each)]
    needed = {key_id_of(each.sealed) for each in keys} or {key_id for each in sealed for key_id in key_ids(each)}
    if needed:
        count = sum(each.kind == Secret.kind for each in sealed)
        raise Invalid(
            f"the key for secrets {path} is missing, but the store holds {count} secrets encrypted with the key "
            f"{min(needed) or '?'}",
            hint="restore the key, or copy `secrets.key` from another server of the cluster; "
            "`mandor recover --forget-secrets` deletes secrets whose key is lost",
        )
    return await asyncio.to_thread(make_master, path)
