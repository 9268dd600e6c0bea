"""Assigns each namespace a range of user ids of its own."""

import logging
from collections.abc import Sequence

import msgspec

from mandor.api.cluster import KEY
from mandor.errors import Conflict, Unavailable
from mandor.model.record import Cluster, Namespace, NamespaceStatus
from mandor.model.user_range import free_range
from mandor.store.base import Put, Store, Write

log = logging.getLogger(__name__)

TRIES = 20
BATCH = 50
"""Namespaces per commit."""


async def with_users(store: Store, writes: Sequence[Write]) -> tuple[list[Write], list[Put]]:
    """Return the writes with user ids for new namespaces, and a write of the cluster object.

    The write of the cluster object makes two servers conflict that assign ids at the same time.
    """
    if not any(isinstance(write, Put) and _lacks(write.value) for write in writes):
        return list(writes), []
    cluster = await store.get(KEY)
    if not isinstance(cluster, Cluster):
        raise Unavailable("the store contains no cluster object yet")
    taken = {each.status.first_user for each in (await store.list(Namespace.kind)).items if isinstance(each, Namespace)}
    start = cluster.status.next_user
    found: list[Write] = []
    for write in writes:
        if isinstance(write, Put) and isinstance(write.value, Namespace) and _lacks(write.value):
            first, start = free_range(taken, start)
            taken.add(first)
            status = msgspec.structs.replace(write.value.status, first_user=first)
            found.append(Put(write.value.changed(status=status)))
        else:
            found.append(write)
    return found, [Put(cluster.changed(status=msgspec.structs.replace(cluster.status, next_user=start)))]


async def ensure_users(store: Store) -> None:
    """Assign user ids and the level `privileged` to namespaces that a version without levels has stored."""
    failures = 0
    while old := [each for each in (await store.list(Namespace.kind)).items if _lacks(each)]:
        puts = [
            Put(each.changed(spec=msgspec.structs.replace(each.spec, level="privileged")))
            for each in old[:BATCH]
            if isinstance(each, Namespace)
        ]
        try:
            writes, cluster = await with_users(store, puts)
            await store.commit(*writes, *cluster)
        except Conflict:  # Another server was first.
            failures += 1
            if failures == TRIES:
                raise
            continue
        log.warning(
            "made by a version without levels, so their level stays privileged: the namespaces %s; "
            "`level: restricted` in a namespace's manifest confines its tasks",
            ", ".join(each.value.meta.name for each in puts),
        )


def _lacks(value: object) -> bool:
    return isinstance(value, Namespace) and value.status == NamespaceStatus()
