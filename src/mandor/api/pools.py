"""Pools that get machines: what a new node of one gets from it, and what may be changed about one that has some."""

from mandor.errors import Conflict
from mandor.model.meta import Object
from mandor.model.node import NodeSpec, Taint
from mandor.model.pool import NodePool
from mandor.provision.registry import check_scaling


def admit_pool(pool: NodePool) -> None:
    if pool.spec.autoscale is not None:
        check_scaling(pool.spec.autoscale, "spec.autoscale")


def check_pool(before: Object | None, after: Object | None) -> None:
    """Raise `Conflict` where machines would be forgotten that somebody pays for."""
    if not isinstance(before, NodePool) or not before.machines or before.spec.autoscale is None:
        return
    scaling = after.spec.autoscale if isinstance(after, NodePool) else None
    same = scaling is not None and (
        (scaling.provisioner, scaling.settings) == (before.spec.autoscale.provisioner, before.spec.autoscale.settings)
    )
    if not same:
        raise Conflict(
            f"the pool {before.meta.name} has {len(before.machines)} machines of its provisioner",
            hint="apply it with `max: 0` (and `min: 0`) first: they are drained and given back, and then it can go",
            path="spec.autoscale",
        )


def new_node_spec(pool: Object | None, name: str, given: str) -> tuple[NodeSpec, dict[str, str]]:
    """What a machine that was ordered gets as it joins: the pool's taints and labels, before any work comes."""
    if isinstance(pool, NodePool) and pool.spec.autoscale is not None:
        kinds = pool.spec.autoscale.kinds
        kind = next((kinds.get(each.kind) for each in pool.machines if each.id == name), None)
        if kind is not None:
            return NodeSpec(pool=given, taints=tuple(map(Taint.parse, kind.taints))), dict(kind.labels)
    return NodeSpec(pool=given), {}
