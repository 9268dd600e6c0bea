"""Node pools with a provisioner: checks of changes, and the spec of their new nodes."""

from collections.abc import Iterable

from mandor.errors import Conflict
from mandor.lib.quantity import Seconds
from mandor.model.meta import Object
from mandor.model.node import NodeSpec, Taint
from mandor.model.pool import NodePool
from mandor.provision.registry import check_scaling, same_place

SHOWN_MOST = 3  # machines of a pool that a sentence names


def admit_pool(pool: NodePool) -> None:
    if pool.spec.autoscale is not None:
        check_scaling(pool.spec.autoscale, "spec.autoscale")


def check_pool(before: Object | None, after: Object | None) -> None:
    """Raise `Conflict` if a change of the provisioner would orphan machines."""
    if not isinstance(before, NodePool) or before.spec.autoscale is None:
        return
    count = sum(not each.unmade for each in before.machines)
    if not count:
        return
    scaling = after.spec.autoscale if isinstance(after, NodePool) else None
    if scaling is None or not same_place(before.spec.autoscale, scaling):
        raise Conflict(
            f"the pool {before.meta.name} has {count} machines of its provisioner",
            hint="apply it with `max: 0` and `min: 0` first: its machines are drained and returned; "
            f"`mandor pool forget {before.meta.name}` removes the records of machines that do not exist",
            path="spec.autoscale",
        )


def machine_labels(objects: Iterable[Object]) -> frozenset[str]:
    """Return the keys of the labels that machines of the pools get."""
    scaled = [each.spec.autoscale for each in objects if isinstance(each, NodePool) and each.spec.autoscale is not None]
    return frozenset(label for scaling in scaled for kind in scaling.kinds.values() for label in kind.labels)


def machines_underway(pools: Iterable[Object], now: float) -> tuple[str, ...]:
    """Return sentences about ordered machines and failing orders, for explanations of pending instances."""
    found = []
    for pool in pools:
        scaling = pool.status.scaling if isinstance(pool, NodePool) else None
        if scaling is None:
            continue
        ordered = [each for each in scaling.machines if each.phase == "Ordered"]
        names = ", ".join(
            f"{each.id} ({each.kind}) {Seconds(round(now - each.at))} ago" for each in ordered[:SHOWN_MOST]
        )
        more = f" and {len(ordered) - SHOWN_MOST} more" if len(ordered) > SHOWN_MOST else ""
        if ordered:
            found.append(f"the pool {pool.meta.name} ordered {names}{more}")
        if scaling.message:
            found.append(f"the pool {pool.meta.name}: {scaling.message}")
    return tuple(found)


def new_node_spec(pool: Object | None, name: str, given: str) -> tuple[NodeSpec, dict[str, str]]:
    """Return the spec and labels of a node that joins: those of its machine kind, if the pool has ordered it."""
    if isinstance(pool, NodePool) and pool.spec.autoscale is not None:
        kinds = pool.spec.autoscale.kinds
        kind = next((kinds.get(each.kind) for each in pool.machines if each.id == name), None)
        if kind is not None:
            return NodeSpec(pool=given, taints=tuple(map(Taint.parse, kind.taints))), dict(kind.labels)
    return NodeSpec(pool=given), {}
