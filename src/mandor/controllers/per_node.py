"""PerNodeController: base class of controllers that act on the instances of a few nodes."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from mandor.controllers.base import Controller
from mandor.controllers.draft import Draft
from mandor.controllers.instance_index import InstanceIndex
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import Steps
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

ONLY_KEY = "all"
PACE_SECONDS = 0.5
"""Seconds between two plans: changes of many instances lead to one plan."""


class PerNodeController(Controller[str]):
    """One key for all nodes, because they share disruption budgets. It costs nothing while no node is affected."""

    workers = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder
        self._nodes: dict[str, Node] = {}
        self._index: InstanceIndex | None = None
        self._rest_until = 0.0

    @abstractmethod
    def concerns(self, node: Node) -> bool:
        """Return whether the controller acts on this node."""

    @abstractmethod
    def plan(self, nodes: Sequence[Node], index: InstanceIndex, now: float) -> Steps[Draft]:
        """Plan for all affected nodes, one step per node."""

    def busy(self) -> bool:
        return bool(self._nodes)

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        if isinstance(changes[0].value, Instance) and self._index is None:
            return (ONLY_KEY,) if self.busy() else ()
        return super().observe_all(changes)

    def observe(self, change: Change) -> Iterable[str]:
        before, after = change.before, change.after
        value = before if after is None else after
        if isinstance(value, Instance):
            if self._index is not None:
                self._index.see(before, after)
        elif isinstance(value, Node):
            if isinstance(after, Node) and self.concerns(after):
                self._nodes[value.meta.name] = after
            elif self._nodes.pop(value.meta.name, None) is not None:
                return (ONLY_KEY,)
        return (ONLY_KEY,) if self.busy() else ()

    async def reconcile(self, key: str) -> float | None:
        if not self.busy():
            self._index = None
            return None
        rest = self._rest_until - self._clock.monotonic()
        if rest > 0:
            return rest
        self._rest_until = self._clock.monotonic() + PACE_SECONDS
        if self._index is None:
            self._index = InstanceIndex()
            await in_turns(self._index.fill(self._mirrors[Instance.kind]))
        nodes = [self._nodes[name] for name in sorted(self._nodes)]
        draft = await in_turns(self.plan(nodes, self._index, self._clock.now()))
        conflicts = await self._writer.commit_each(draft.writes) if draft.writes else 0
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return PACE_SECONDS if conflicts else draft.again_seconds

    def node(self, name: str) -> Node | None:
        found = self._mirrors[Node.kind].get(Key(Node.kind, "", name))
        return found if isinstance(found, Node) else None
