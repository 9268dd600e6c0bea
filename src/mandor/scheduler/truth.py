"""Compares the scheduler's table with the store: they may differ for a moment, and never for long."""

from collections.abc import Iterable

from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.table_report import Difference, TableReport
from mandor.placement.table import Table
from mandor.scheduler.view import View
from mandor.store.base import Store

LOOKS_MOST = 10
PAUSE_SECONDS = 0.3
DIFFERENCES_MOST = 1000


async def compare(view: View, store: Store, clock: Clock) -> TableReport:
    """What differs at every look is a difference; what a change on its way explains is none."""
    lasting: set[Difference] | None = None
    for _ in range(LOOKS_MOST):
        found = set(await _look(view, store))
        lasting = found if lasting is None else lasting & found
        if not lasting:
            break
        await clock.sleep(PAUSE_SECONDS)
    table = view.table
    return TableReport(
        nodes=len(table),
        instances=len(table.charges),
        promised=view.promises,
        differences=tuple(sorted(lasting or (), key=lambda each: each.about))[:DIFFERENCES_MOST],
    )


async def _look(view: View, store: Store) -> list[Difference]:
    nodes = [each for each in (await store.list(Node.kind)).items if isinstance(each, Node)]
    instances = [each for each in (await store.list(Instance.kind)).items if isinstance(each, Instance)]
    # Nothing is awaited from here on: the table stands still.
    found = [*_nodes(view, nodes), *_instances(view, instances)]
    return found + list(_sums(view.table))


def _nodes(view: View, nodes: Iterable[Node]) -> Iterable[Difference]:
    stored = {each.meta.name: each for each in nodes if view.owns(each.spec.pool)}
    known = {each.meta.name: each for each in view.table.snapshot().nodes}
    for name in stored.keys() | known.keys():
        there, here = stored.get(name), known.get(name)
        if there is None or here is None or there.meta.version != here.meta.version:
            yield Difference(f"node {name}", _version(here), _version(there))


def _version(node: Node | None) -> str:
    return "not there" if node is None else f"version {node.meta.version}"


def _instances(view: View, instances: Iterable[Instance]) -> Iterable[Difference]:
    stored = {each.key: each.node for each in instances if each.node and not each.phase.over}
    counted = {key for key in view.table.charges if key.kind == Instance.kind}  # and not what an inventory shows
    for key in stored.keys() | counted:
        charge = view.table.charge(key)
        here, there = charge.node if charge is not None else "", stored.get(key, "")
        if here != there and view.promised(key) is None:
            about = f"instance {key.namespace}/{key.name}"
            yield Difference(about, f"on {here}" if here else "not counted", f"on {there}" if there else "on no node")


def _sums(table: Table) -> Iterable[Difference]:
    """The columns against the instances they are the sum of."""
    used: dict[str, dict[str, int]] = {}
    for charge in table.charges.values():
        mine = used.setdefault(charge.node, {})
        for resource, amount in charge.shape.wanted:
            mine[resource] = mine.get(resource, 0) + amount
    nodes = table.snapshot()
    for node in nodes.nodes:
        name = node.meta.name
        slot, free = nodes.slots[name], table.free(name)
        for resource, row in nodes.rows.items():
            left = int(nodes.allocatable[row, slot]) - used.get(name, {}).get(resource, 0)
            if left != free[resource]:
                yield Difference(f"node {name}", f"{free[resource]} {resource} free", f"{left} by its instances")
