"""The cluster object, which holds the id and epoch of the cluster."""

from mandor.errors import Unavailable
from mandor.model.meta import Key
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Store

KEY = Key("cluster", "", "cluster")


async def read_cluster(store: Store) -> ClusterSpec:
    found = await store.get(KEY)
    if not isinstance(found, Cluster):
        raise Unavailable("the store contains no cluster object yet")
    return found.spec
