"""Compares the scheduler's table with the store; differences may exist for a moment only."""

from collections.abc import Iterable, Mapping, Sequence

from mandor.lib.clock import Clock
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.table_report import Difference, TableReport
from mandor.placement.table import Table
from mandor.scheduler.view import View
from mandor.store.base import Store

LOOKS_MOST = 10
"""Comparisons before a difference is reported."""
PAUSE_SECONDS = 0.3
"""Seconds between two comparisons."""
DIFFERENCES_MOST = 1000
"""Differences in a report."""


async def compare(view: View, store: Store, clock: Clock) -> TableReport:
    """Report the differences that are found by each of several comparisons; others are changes in transit."""
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
        instances=len(table.allocations),
        promised=view.binding,
        differences=tuple(sorted(lasting or (), key=lambda each: each.about))[:DIFFERENCES_MOST],
    )


async def _look(view: View, store: Store) -> list[Difference]:
    """Compare once. The table changes meanwhile, so a single comparison may find false differences."""
    nodes = [each for each in (await store.list(Node.kind)).items if isinstance(each, Node)]
    instances = (await store.list(Instance.kind)).items
    found = await in_turns(_nodes(view, nodes))
    found += await in_turns(_instances(view, instances))
    return found + await in_turns(_sums(view.table))


def _nodes(view: View, nodes: Sequence[Node]) -> Steps[list[Difference]]:
    found: list[Difference] = []
    left = {each.meta.name: each for each in view.table.snapshot().nodes}
    yield len(left)
    for piece in pieces(nodes, FEW):
        for there in piece:
            if view.state.owns(there.spec.pool):
                here = left.pop(there.meta.name, None)
                if here is None or there.meta.version != here.meta.version:
                    found.append(Difference(f"node {there.meta.name}", _version(here), _version(there)))
        yield WRITTEN * len(piece)
    return found + [Difference(f"node {name}", _version(here), _version(None)) for name, here in left.items()]


def _version(node: Node | None) -> str:
    return "not there" if node is None else f"version {node.meta.version}"


def _instances(view: View, instances: Sequence[Object]) -> Steps[list[Difference]]:
    found: list[Difference] = []
    left: dict[Key, None] = {}
    for some in pieces(list(view.table.allocations)):  # in steps: copying all keys at once takes long
        left.update(dict.fromkeys(some))
        yield len(some)
    for piece in pieces(instances, FEW):
        for each in piece:
            if isinstance(each, Instance) and each.node and not each.phase.over:
                key = each.key
                left.pop(key, None)
                found += _of_instance(view, key, each.node)
        yield WRITTEN * len(piece)
    for some in pieces(list(left)):
        for key in some:
            if key.kind == Instance.kind:  # not an entry of a bare-metal inventory
                found += _of_instance(view, key, "")
        yield 2 * len(some)
    return found


def _of_instance(view: View, key: Key, there: str) -> Iterable[Difference]:
    allocation = view.table.allocation(key)
    here = allocation.node if allocation is not None else ""
    if here != there and view.assigned(key) is None:
        about = f"instance {key.namespace}/{key.name}"
        yield Difference(about, f"on {here}" if here else "not counted", f"on {there}" if there else "on no node")


def _sums(table: Table) -> Steps[list[Difference]]:
    """Compare the free resources of each node with the sum of its allocations."""
    used: dict[str, dict[str, int]] = {}
    for piece in pieces(list(table.allocations.values()), FEW):
        for allocation in piece:
            mine = used.setdefault(allocation.node, {})
            for resource, amount in allocation.shape.wanted:
                mine[resource] = mine.get(resource, 0) + amount
        yield WRITTEN * len(piece)
    found: list[Difference] = []
    for name in [node.meta.name for node in table.nodes]:
        found += _of_node(table, name, used.get(name, {}))
        yield 6 * WRITTEN
    return found


def _of_node(table: Table, name: str, used: Mapping[str, int]) -> Iterable[Difference]:
    nodes = table.snapshot()
    slot = nodes.slots.get(name)
    if slot is None:  # gone meanwhile
        return
    free = table.free(name)
    for resource, _ in nodes.own_resources(slot):
        left = int(nodes.allocatable[nodes.rows[resource], slot]) - used.get(resource, 0)
        if left != free[resource]:
            yield Difference(f"node {name}", f"{free[resource]} {resource} free", f"{left} by its instances")
