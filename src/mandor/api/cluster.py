"""Who this cluster is: the one object that holds its id and epoch."""

from mandor.errors import Unavailable
from mandor.model.meta import Key
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Store

KEY = Key("cluster", "", "cluster")


async def read_cluster(store: Store) -> ClusterSpec:
    found = await store.get(KEY)
    if not isinstance(found, Cluster):
        raise Unavailable("the store does not say yet which cluster it holds")
    return found.spec
