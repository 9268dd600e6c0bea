"""The taint controller: evicts instances that do not tolerate a NoExecute taint, or no longer."""

from collections.abc import Sequence

from mandor.controllers.draft import Draft
from mandor.controllers.instance_index import InstanceIndex
from mandor.controllers.per_node import PerNodeController
from mandor.controllers.taint_plan import evicts, plan_taints
from mandor.lib.steps import WRITTEN, Steps
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.placement import Toleration
from mandor.model.workload import Release
from mandor.placement.conversion import release_key


class TaintController(PerNodeController):
    name = "taint"
    watches = (Node.kind, Release.kind, Instance.kind)

    def concerns(self, node: Node) -> bool:
        return evicts(node)

    def plan(self, nodes: Sequence[Node], index: InstanceIndex, now: float) -> Steps[Draft]:
        whole = Draft()
        for node in nodes:
            here = index.on(node.meta.name)
            whole.add(plan_taints(node, here, self._tolerations, now))
            yield WRITTEN * (1 + len(here))
        return whole

    def _tolerations(self, instance: Instance) -> Sequence[Toleration] | None:
        release = self._mirrors[Release.kind].get(release_key(instance))
        if not isinstance(release, Release) or instance.spec.group not in release.spec.groups:
            return None
        return release.spec.groups[instance.spec.group].placement.tolerate
