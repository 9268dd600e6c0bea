"""Checks and prepares the store before a server uses it: the marker, the cluster object, the keys of secrets."""

import asyncio
import logging

from mandor.api.cluster import KEY
from mandor.api.secret_keys import Keys
from mandor.errors import Unavailable
from mandor.model.record import Cluster, ClusterSpec
from mandor.roots.bootstrap import ensure_cluster, ensure_master, raise_epoch
from mandor.roots.secret_file import HINT
from mandor.roots.settings import ServerSettings
from mandor.store.base import Store
from mandor.store.marked import MarkedStore, check_not_older
from mandor.store.marker import Marker, MarkerContent, read_marker

log = logging.getLogger("mandor.server")


def remembered_of(settings: ServerSettings) -> MarkerContent | None:
    return read_marker(settings.marker_file) if settings.durable else None


async def check_store(store: Store, settings: ServerSettings, remembered: MarkerContent | None) -> None:
    """Raise an error for a store that is not the one this server used before; writes nothing."""
    if remembered is not None:
        found, listing = await store.get(KEY), await store.list(Cluster.kind)
        spec = found.spec if isinstance(found, Cluster) else None
        check_not_older(spec, listing.revision, remembered, accept_older=settings.accept_older_store)


async def prepare(
    store: Store, settings: ServerSettings, marked: MarkedStore, remembered: MarkerContent | None, *, dev: bool
) -> tuple[ClusterSpec, Keys]:
    """Return the cluster of the store and the keys of its secrets; raise `Invalid` if they cannot be opened.

    A store that is older than it was, and was accepted, gets a new epoch: revisions are used a second time, and agents
    reject lists with a lower revision than they have seen in the same epoch.
    """
    revision = (await store.list(Cluster.kind)).revision
    master = await ensure_master(store, settings)
    cluster = await ensure_cluster(store, "privileged" if dev else "restricted", master)
    if remembered is not None and (cluster.epoch, revision) < (remembered.epoch, remembered.revision):
        cluster = await raise_epoch(store, remembered.epoch + 1)
        log.warning("the store is older than it was; its epoch is %d now", cluster.epoch)
    keys = Keys(store, master)
    await keys.load()
    if settings.durable:
        revision = (await store.list(Cluster.kind)).revision
        known = MarkerContent(cluster=cluster.id, epoch=cluster.epoch, revision=revision)
        try:
            marked.use(await asyncio.to_thread(Marker, settings.marker_file, known))
        except OSError as error:
            raise Unavailable(
                f"cannot write {settings.marker_file}: {(error.strerror or str(error)).lower()}", hint=HINT
            ) from error
    log.info("cluster %s, epoch %d, in %s", cluster.id, cluster.epoch, shown(settings.store_url))
    return cluster, keys


def shown(url: str) -> str:
    """Return a store's URL without a password."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if "@" in rest else url
