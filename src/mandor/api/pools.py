"""Node pools with a provisioner: checks of changes, and the spec of their new nodes."""

from mandor.errors import Conflict
from mandor.model.meta import Object
from mandor.model.node import NodeSpec, Taint
from mandor.model.pool import NodePool
from mandor.provision.registry import check_scaling


def admit_pool(pool: NodePool) -> None:
    if pool.spec.autoscale is not None:
        check_scaling(pool.spec.autoscale, "spec.autoscale")


def check_pool(before: Object | None, after: Object | None) -> None:
    """Raise `Conflict` if a change of the provisioner would orphan machines."""
    if not isinstance(before, NodePool) or not before.machines or before.spec.autoscale is None:
        return
    scaling = after.spec.autoscale if isinstance(after, NodePool) else None
    same = scaling is not None and (
        (scaling.provisioner, scaling.settings) == (before.spec.autoscale.provisioner, before.spec.autoscale.settings)
    )
    if not same:
        raise Conflict(
            f"the pool {before.meta.name} has {len(before.machines)} machines of its provisioner",
            hint="apply it with `max: 0` and `min: 0` first: its machines are drained and returned",
            path="spec.autoscale",
        )


def new_node_spec(pool: Object | None, name: str, given: str) -> tuple[NodeSpec, dict[str, str]]:
    """Return the spec and labels of a node that joins: those of its machine kind, if the pool has ordered it."""
    if isinstance(pool, NodePool) and pool.spec.autoscale is not None:
        kinds = pool.spec.autoscale.kinds
        kind = next((kinds.get(each.kind) for each in pool.machines if each.id == name), None)
        if kind is not None:
            return NodeSpec(pool=given, taints=tuple(map(Taint.parse, kind.taints))), dict(kind.labels)
    return NodeSpec(pool=given), {}
