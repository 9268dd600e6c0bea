"""A link without a network, for agents in the same process as their store, as in the simulator."""

from collections.abc import Awaitable, Callable, Mapping

from mandor.agent.link import Applied, Duplex, Heartbeat
from mandor.errors import Conflict, Unavailable, Unsupported
from mandor.model.features import FEATURES
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodeSpec
from mandor.model.record import Cluster, ClusterSpec, Session
from mandor.store.base import Put, Store

CLUSTER = Key(Cluster.kind, "", "cluster")
Dial = Callable[[Session], Awaitable[Duplex]]


class DirectLink:
    """Implements `Link` on a store."""

    features = frozenset(FEATURES)
    renewing = False
    renew_at = None
    certify_at = None

    def __init__(
        self,
        store: Store,
        node: str,
        *,
        beat: Callable[[str, Heartbeat], None] = lambda node, beat: None,
        dial: Dial | None = None,
        pool: str | None = None,
        labels: dict[str, str] | None = None,
    ) -> None:
        self._store, self._node, self._beat, self._dial = store, node, beat, dial
        self._pool, self._labels = pool, labels or {}
        self._applied: dict[str, int] = {}

    async def join(self) -> ClusterSpec:
        cluster = await self.cluster()
        if await self._store.get(Key(Node.kind, "", self._node)) is None:
            spec = NodeSpec(pool=self._pool) if self._pool else NodeSpec()
            try:
                await self._store.commit(Put(Node(meta=Meta(name=self._node, labels=self._labels), spec=spec)))
            except Conflict:
                return await self.join()
        return cluster

    async def cluster(self) -> ClusterSpec:
        found = await self._store.get(CLUSTER)
        if not isinstance(found, Cluster):
            raise Unavailable("the store has no cluster object yet")
        return found.spec

    async def renew_credential(self) -> None:
        """Do nothing: this link has no credential."""

    async def identity(self, instance: Instance, task: str) -> tuple[str, float]:
        raise Unsupported("identity tokens are issued only by an API server", instance=instance.meta.name)

    async def renew_certificate(self) -> None:
        """Do nothing: this link has no certificate."""

    async def heartbeat(self, beat: Heartbeat) -> ClusterSpec:
        cluster = await self.cluster()
        self._beat(self._node, beat)
        return cluster

    async def report_applied(self, namespaces: Mapping[str, int]) -> None:
        self._applied = dict(namespaces)

    async def wait_applied(self, asks: Mapping[str, int]) -> Applied:
        """Return the report of this node: no other node is known."""
        return Applied(complete=True, lowest={name: self._applied[name] for name in asks if name in self._applied})

    def leave_server(self) -> None:
        """Do nothing: there is one store."""

    async def dial(self, session: Session) -> Duplex:
        if self._dial is None:
            raise Unsupported("this link cannot connect to API servers", session=session.meta.name)
        return await self._dial(session)
