"""The drain controller: moves instances off drained nodes and reports the progress."""

from collections.abc import Iterable, Sequence

from mandor.controllers.draft import Draft
from mandor.controllers.drain_plan import DrainInputs, Groups, end_drain, must_leave, plan_drain, stay
from mandor.controllers.group_name import group_of
from mandor.controllers.instance_index import InstanceIndex, bound_to_node, workload_of
from mandor.controllers.per_node import PerNodeController
from mandor.lib.clock import Clock
from mandor.lib.steps import WRITTEN, Steps
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.store.base import Change, Store
from mandor.store.recorder import Recorder


class DrainController(PerNodeController):
    """Marks instances that must leave; the workload controller moves them. It stops instances itself only at a deadline
    or with `force`."""

    name = "drain"
    watches = (Node.kind, Volume.kind, Workload.kind, Instance.kind)

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        super().__init__(store, clock, recorder)
        self._leaving: dict[Key, Instance] = {}

    def concerns(self, node: Node) -> bool:
        return node.drain is not None or node.status.drain is not None

    def busy(self) -> bool:
        return bool(self._nodes or self._leaving)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        if isinstance(changes[0].value, Instance):
            for change in changes:
                after = change.after
                if isinstance(after, Instance) and must_leave(after) and not after.phase.over:
                    self._leaving[change.key] = after
                elif self._leaving:
                    self._leaving.pop(change.key, None)
        return super().observe_all(changes)

    def plan(self, nodes: Sequence[Node], index: InstanceIndex, now: float) -> Steps[Draft]:
        whole, groups = Draft(), Groups(index.of)
        for node in nodes:
            if node.drain is None:
                end_drain(whole, node)
                continue
            here = index.on(node.meta.name)
            for name in dict.fromkeys(map(group_of, here)):
                yield from groups.look(name)
            whole.add(plan_drain(DrainInputs(node, here, self._workload, self._bound_to_node), node.drain, groups, now))
            yield 2 * WRITTEN * (1 + len(here))
        for each in self._leaving.values():
            node_now = self.node(each.spec.node)
            if each.spec.stop is None and (node_now is None or node_now.drain is None):
                stay(whole, each)
        return whole

    def _workload(self, instance: Instance) -> Workload | None:
        return workload_of(instance, self._mirrors[Workload.kind])

    def _bound_to_node(self, instance: Instance) -> bool:
        return bound_to_node(instance, self._mirrors[Volume.kind])
