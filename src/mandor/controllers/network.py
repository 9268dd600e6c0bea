"""NetworkController: gives each node a part of the ranges of every network."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from mandor.controllers.base import Controller
from mandor.controllers.network_plan import can_attach, plan_network
from mandor.controllers.writer import Writer
from mandor.errors import Conflict
from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.model.network import Network
from mandor.model.node import Node
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

AGAIN_SECONDS = 0.1
"""Seconds until a plan that met a conflict is made again."""


class NetworkController(Controller[Key]):
    """One worker assigns the numbers and parts of all networks."""

    name: ClassVar[str] = "network"
    watches: ClassVar[tuple[str, ...]] = (Network.kind, Node.kind)
    workers: ClassVar[int] = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._networks, self._nodes = mirrors[Network.kind], mirrors[Node.kind]
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        if isinstance(change.value, Network):
            return (change.key,)
        before, after = change.before, change.after
        if _relevant(before) == _relevant(after):
            return ()
        return [each.key for each in self._networks.items()]

    async def reconcile(self, key: Key) -> float | None:
        network = self._networks.get(key)
        if not isinstance(network, Network):
            return None
        nodes = [each for each in self._nodes.items() if isinstance(each, Node)]
        others = (each for each in self._networks.items() if isinstance(each, Network) and each.key != key)
        draft = plan_network(network, nodes, {each.status.number for each in others}, self._clock.now())
        try:
            await self._writer.commit(draft.writes)
        except Conflict:
            return AGAIN_SECONDS
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return draft.again_seconds


def _relevant(node: object) -> tuple[str, str, bool] | None:
    """Return what the plan depends on; None: there is no node."""
    if not isinstance(node, Node):
        return None
    return node.meta.uid, node.status.address, can_attach(node)
