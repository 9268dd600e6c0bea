"""InstanceIndex: instances by node and by group, kept only while a controller needs it."""

from mandor.controllers.base import Grouped
from mandor.controllers.group_name import GroupName, group_of
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.store.mirror import Mirror


class InstanceIndex:
    """Receives every change of an instance; `fill` adds the existing ones while changes arrive."""

    def __init__(self) -> None:
        self._on: Grouped[str, Instance] = Grouped(lambda each: each.node or None)
        self._claims: Grouped[str, Instance] = Grouped(lambda each: each.node or None)
        self._of: Grouped[GroupName, Instance] = Grouped(group_of)

    def fill(self, instances: Mirror) -> Steps[None]:
        for piece in pieces(list(instances.items()), FEW):
            for each in piece:
                now = instances.get(each.key)  # it may have changed since the list was copied
                if now is not None:
                    self.see(None, now)
            yield 2 * WRITTEN * len(piece)

    def see(self, before: Object | None, after: Object | None) -> None:
        old = before if isinstance(before, Instance) else None
        new = after if isinstance(after, Instance) else None
        if any(each is not None and each.spec.claim is not None for each in (old, new)):
            self._claims.update(old, new)
            return
        self._on.update(old, new)
        self._of.update(old, new)

    def on(self, node: str) -> list[Instance]:
        """Return the instances on a node, ordered by name."""
        return sorted(self._on.of(node), key=lambda each: each.key)

    def claims_on(self, node: str) -> list[Instance]:
        """Return the claims on a node, which cannot be moved."""
        return self._claims.of(node)

    def of(self, group: GroupName) -> list[Instance]:
        return self._of.of(group)


def workload_of(instance: Instance, workloads: Mirror) -> Workload | None:
    found = workloads.get(Key(Workload.kind, instance.meta.namespace, instance.spec.workload))
    return found if isinstance(found, Workload) else None


def bound_to_node(instance: Instance, volumes: Mirror) -> bool:
    """Return whether a volume of the instance is on its node, so that it cannot start elsewhere."""
    keys = (Key(Volume.kind, instance.meta.namespace, name) for name in instance.spec.volumes)
    found = (volumes.get(key) for key in keys)
    return any(each is not None and each.node == instance.spec.node for each in found)
