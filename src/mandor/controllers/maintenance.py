"""The maintenance controller: opens and closes the maintenance windows of pools, and drains nodes in turn."""

from collections.abc import Iterable, Mapping

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.draft import Draft
from mandor.controllers.maintenance_plan import end_maintenance, plan_maintenance
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.pool import NodePool
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


class MaintenanceController(Controller[str]):
    """A key is the name of a pool, which may have no object."""

    name = "maintenance"
    watches = (NodePool.kind, Node.kind)
    workers = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder
        self._nodes: Grouped[str, Node] = Grouped(lambda node: node.spec.pool)

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._pools = mirrors[NodePool.kind]
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[str]:
        before, after = change.before, change.after
        if isinstance(change.value, NodePool):
            return (change.value.meta.name,)
        old = before if isinstance(before, Node) else None
        new = after if isinstance(after, Node) else None
        self._nodes.update(old, new)
        if new is None or (old is not None and new.status.maintenance is None and _alike(old, new)):
            return ()
        return (new.spec.pool,)

    async def reconcile(self, key: str) -> float | None:
        draft = self._plan(key)
        conflicts = await self._writer.commit_each(draft.writes) if draft.writes else 0
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return 0.5 if conflicts else draft.again_seconds

    def _plan(self, name: str) -> Draft:
        pool = self._pools.get(Key(NodePool.kind, "", name))
        nodes = self._nodes.of(name)
        if isinstance(pool, NodePool):
            return plan_maintenance(pool, nodes, self._clock.now())
        draft = Draft()
        for node in nodes:
            if node.status.maintenance is not None:
                end_maintenance(draft, node, f"the pool {name} has no maintenance windows any more")
        return draft


def _alike(old: Node, new: Node) -> bool:
    """Return whether nothing changed that matters for maintenance."""
    return (old.spec.pool, old.closed, old.status.phase) == (new.spec.pool, new.closed, new.status.phase)
