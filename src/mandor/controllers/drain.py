"""The drain controller: has whatever is on a drained node leave it, and tells how far that is."""

from collections import Counter
from collections.abc import Iterable, Mapping

from mandor.controllers.base import Controller
from mandor.controllers.draft import Draft
from mandor.controllers.drain_plan import DrainSeen, end_drain, must_leave, plan_drain, stay
from mandor.controllers.residents import GroupName, Residents, rooted, workload_of
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

DRAINS = "drains"
"""The only key: nodes that are drained together share the budgets of those who leave them."""
PACE_SECONDS = 0.5
"""So long lies between two looks: what many instances do makes one plan, and one write of how far it is."""


class DrainController(Controller[str]):
    """It says who has to leave; the workload's controller carries that out. What it stops itself, it does at a
    deadline or by force."""

    name = "drain"
    watches = (Node.kind, Volume.kind, Workload.kind, Instance.kind)
    workers = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder
        self._drained: set[str] = set()
        """Nodes that are to be empty, or were until now."""
        self._leaving: dict[Key, Instance] = {}
        self._residents: Residents | None = None
        self._rest_until = 0.0

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[str]:
        if isinstance(change.value, Instance):
            self._observe_instance(change)
        elif isinstance(change.value, Node):
            name, node = change.value.meta.name, change.after
            if isinstance(node, Node) and (node.drain is not None or node.status.drain is not None):
                self._drained.add(name)
            elif name in self._drained:
                self._drained.discard(name)
                return (DRAINS,)
        return (DRAINS,) if self._drained or self._leaving else ()

    def _observe_instance(self, change: Change) -> None:
        after = change.after
        if isinstance(after, Instance) and must_leave(after) and not after.phase.over:
            self._leaving[change.key] = after
        else:
            self._leaving.pop(change.key, None)
        if self._residents is not None:
            self._residents.see(change.before, after)

    async def reconcile(self, key: str) -> float | None:
        if not self._drained and not self._leaving:
            self._residents = None
            return None
        rest = self._rest_until - self._clock.monotonic()
        if rest > 0:
            return rest
        self._rest_until = self._clock.monotonic() + PACE_SECONDS
        draft = self._plan(self._residents or self._make_residents())
        conflicts = await self._writer.commit_each(draft.writes) if draft.writes else 0
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return PACE_SECONDS if conflicts else draft.again_seconds

    def _make_residents(self) -> Residents:
        self._residents = Residents(self._mirrors[Instance.kind].items())
        return self._residents

    def _plan(self, residents: Residents) -> Draft:
        whole, taken, now = Draft(), Counter[GroupName](), self._clock.now()
        for name in sorted(self._drained):
            node = self._mirrors[Node.kind].get(Key(Node.kind, "", name))
            if not isinstance(node, Node):
                continue
            if node.drain is None:
                end_drain(whole, node)
                continue
            seen = DrainSeen(node, residents.on(name), residents.of, self._workload, self._rooted)
            whole.add(plan_drain(seen, node.drain, taken, now))
        for each in self._leaving.values():
            if not self._to_be_empty(each.spec.node) and each.spec.stop is None:
                stay(whole, each)
        return whole

    def _to_be_empty(self, name: str) -> bool:
        node = self._mirrors[Node.kind].get(Key(Node.kind, "", name))
        return isinstance(node, Node) and node.drain is not None

    def _workload(self, instance: Instance) -> Workload | None:
        return workload_of(instance, self._mirrors[Workload.kind])

    def _rooted(self, instance: Instance) -> bool:
        return rooted(instance, self._mirrors[Volume.kind])
