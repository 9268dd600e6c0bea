"""The control-plane controller: labels nodes on which a server runs, so that no virtual machine is placed there."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from mandor.controllers.base import Controller
from mandor.controllers.control_plane_plan import server_hosts, with_label
from mandor.errors import Conflict
from mandor.model.meta import Key
from mandor.model.node import CONTROL_PLANE, Node
from mandor.model.record import Server
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

AGAIN_SECONDS = 0.1


class ControlPlaneController(Controller[Key]):
    """Keys are those of nodes. The label stays when the server is gone, because the server may come back; the value
    `false` releases the node for virtual machines."""

    name: ClassVar[str] = "control-plane"
    watches: ClassVar[tuple[str, ...]] = (Node.kind, Server.kind)
    workers: ClassVar[int] = 1

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store, self._recorder = store, recorder

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors

    def observe(self, change: Change) -> Iterable[Key]:
        before, after = change.before, change.after
        if isinstance(after, Server):
            known = isinstance(before, Server) and before.spec.address == after.spec.address
            return () if known else tuple(each.key for each in self._mirrors[Node.kind].items())
        if not isinstance(after, Node) or CONTROL_PLANE in after.meta.labels:
            return ()
        known = isinstance(before, Node) and _seen(before) == _seen(after)
        return () if known else (after.key,)

    async def reconcile(self, key: Key) -> float | None:
        hosts = server_hosts(each for each in self._mirrors[Server.kind].items() if isinstance(each, Server))
        node = await self._store.get(key) if hosts else None
        labelled = with_label(node, hosts) if isinstance(node, Node) else None
        if labelled is None:
            return None
        try:
            await self._store.commit(Put(labelled))
        except Conflict:
            return AGAIN_SECONDS
        message = "a server of the control plane runs here: no virtual machines are placed on this node"
        self._recorder.note(labelled, "ControlPlaneNode", message)
        return None


def _seen(node: Node) -> tuple[object, ...]:
    return node.meta.labels, node.status.address, node.status.facts.get("hostname")
