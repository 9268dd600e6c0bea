"""Tables of random clusters, built at once or change by change, and calls of plugins on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.points import SKIP, FilterPlugin, PreFilterPlugin, PreScorePlugin, ScorePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.plugins.node_resources_balanced_allocation import NodeResourcesBalancedAllocation
from mandor.placement.plugins.vm_quota import VMQuota
from mandor.placement.table import Table

NAMES = [f"n{index}" for index in range(6)]
STATE = CycleState()


def key(index: int) -> Key:
    return Key(Instance.kind, "default", f"i-{index}")


def build(found: Iterable[Node], placed: Iterable[tuple[Any, ...]]) -> Table:
    """`placed`: node name, shape, and identity if it matters."""
    table = Table()
    for node in found:
        table.set_node(node)
    for index, allocation in enumerate(placed):
        table.set_allocation(key(index), *allocation)
    return table


def mask_of(plugin: FilterPlugin, request: PlacementRequest, nodes: Snapshot) -> Mask:
    """Call a Filter as a cycle does: all nodes pass if its PreFilter skips."""
    if isinstance(plugin, PreFilterPlugin) and plugin.pre_filter(STATE, request, nodes) is SKIP:
        return np.ones(len(nodes), dtype=np.bool_)
    return plugin.filter(STATE, request, nodes)


def check_scores(plugin: ScorePlugin, request: PlacementRequest, nodes: Snapshot, expected: list[int]) -> None:
    """Check raw scores, and that normalized ones are 0 to 100; a PreScore may skip if all are equal."""
    everyone = np.ones(len(nodes), dtype=np.bool_)
    if isinstance(plugin, PreScorePlugin) and plugin.pre_score(STATE, request, nodes, everyone) is SKIP:
        silent = isinstance(plugin, NodeResourcesBalancedAllocation | VMQuota)
        assert silent or len(set(expected)) <= 1, f"{plugin.name} says nothing, though nodes differ"
        return
    raw = plugin.score(STATE, request, nodes, everyone)
    assert raw.dtype == np.int64
    assert raw.tolist() == expected, plugin.name
    if expected:
        final = plugin.normalize(STATE, request, raw)
        assert final.dtype == np.int64
        assert 0 <= final.min() <= final.max() <= 100, plugin.name


def by_name(table: Table, answers: Any) -> dict[str, Any]:
    return dict(zip((node.meta.name for node in table.snapshot().nodes), answers.tolist(), strict=True))


class ChangedTable:
    """A table and the changes that were applied to it."""

    def __init__(self) -> None:
        self.table = Table()
        self.nodes: dict[str, Node] = {}
        self._allocations: dict[int, tuple[Any, ...]] = {}

    def apply(self, what: str, *said: Any) -> None:
        if what == "node":
            self.table.set_node(said[0])
            self.nodes[said[0].meta.name] = said[0]
        elif what == "gone":
            self.table.remove_node(said[0])
            self.nodes.pop(said[0], None)
        elif what == "allocation":
            self.table.set_allocation(key(said[0]), *said[1:])
            self._allocations[said[0]] = said[1:]
        elif what == "drop":
            self.table.drop_allocation(key(said[0]))
            self._allocations.pop(said[0], None)
        else:
            assert what == "relabel"
            self._relabel(*said)

    def _relabel(self, before: Identity, labels: dict[str, str]) -> None:
        after = Identity(before.namespace, before.workload, before.group, labels)
        for index, (name, shape, identity) in list(self._allocations.items()):
            if identity == before:
                self.apply("allocation", index, name, shape, after)

    def anew(self) -> Table:
        """Return a new table with the current content."""
        fresh = build(self.nodes.values(), ())
        for index, allocation in self._allocations.items():
            fresh.set_allocation(key(index), *allocation)
        return fresh
