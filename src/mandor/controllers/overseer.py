"""What controllers share that look after whatever is on a few nodes: one look at all of them, now and then."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from mandor.controllers.base import Controller
from mandor.controllers.draft import Draft
from mandor.controllers.residents import Residents
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import Steps, in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

LOOK = "look"
PACE_SECONDS = 0.5
"""So long lies between two looks: what many instances do makes one plan."""


class Overseer(Controller[str]):
    """One key for all nodes, because they share budgets. While no node concerns it, it costs nothing."""

    workers = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder
        self._nodes: dict[str, Node] = {}
        self._residents: Residents | None = None
        self._rest_until = 0.0

    @abstractmethod
    def concerns(self, node: Node) -> bool:
        """Whether it has to look at what is there."""

    @abstractmethod
    def plan(self, nodes: Sequence[Node], residents: Residents, now: float) -> Steps[Draft]:
        """For all nodes that concern it, each in a step of its own."""

    def busy(self) -> bool:
        return bool(self._nodes)

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        if isinstance(changes[0].value, Instance) and self._residents is None:
            return (LOOK,) if self.busy() else ()
        return super().observe_all(changes)

    def observe(self, change: Change) -> Iterable[str]:
        before, after = change.before, change.after
        value = before if after is None else after
        if isinstance(value, Instance):
            if self._residents is not None:
                self._residents.see(before, after)
        elif isinstance(value, Node):
            if isinstance(after, Node) and self.concerns(after):
                self._nodes[value.meta.name] = after
            elif self._nodes.pop(value.meta.name, None) is not None:
                return (LOOK,)
        return (LOOK,) if self.busy() else ()

    async def reconcile(self, key: str) -> float | None:
        if not self.busy():
            self._residents = None
            return None
        rest = self._rest_until - self._clock.monotonic()
        if rest > 0:
            return rest
        self._rest_until = self._clock.monotonic() + PACE_SECONDS
        if self._residents is None:
            self._residents = Residents()
            await in_turns(self._residents.fill(self._mirrors[Instance.kind]))
        nodes = [self._nodes[name] for name in sorted(self._nodes)]
        draft = await in_turns(self.plan(nodes, self._residents, self._clock.now()))
        conflicts = await self._writer.commit_each(draft.writes) if draft.writes else 0
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return PACE_SECONDS if conflicts else draft.again_seconds

    def node(self, name: str) -> Node | None:
        found = self._mirrors[Node.kind].get(Key(Node.kind, "", name))
        return found if isinstance(found, Node) else None
