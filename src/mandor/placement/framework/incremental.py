"""Base classes of the built-in plugins: hooks by which the framework computes an answer again only where it changed.

Plugins of other authors subclass the classes of `points`; the framework calls them for all nodes in every cycle.
"""

from collections.abc import Hashable, Iterable
from enum import Enum
from typing import ClassVar

import numpy as np

from mandor.lib.steps import Steps
from mandor.model.node import Node
from mandor.placement.framework.cached_columns import FEW, At
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.points import FilterPlugin, Nomination, Offer, Plugin, PostFilterPlugin, ScorePlugin
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot, Wanted


class Reach(Enum):
    """Dependencies of the answer of a Filter or Score about a node. A smaller reach needs fewer calls.

    An answer may always depend on the class of the request: its shape, identity, current rules, pin and avoided nodes.
    With `ATTRIBUTES` and `ROOM` it depends on nothing else; in particular not on which other nodes are feasible.
    """

    ATTRIBUTES = "attributes"
    """Attributes of the node: labels, taints, engines, images."""
    ROOM = "room"
    """Attributes of the node and the instances placed on it."""
    CLUSTER = "cluster"
    """Anything; the plugin is called for all nodes in every cycle."""


class Formula(Enum):
    """Scores that the framework itself computes for many nodes at once; see `resource_formulas`."""

    LEAST_ALLOCATED = "least allocated"
    """Kubernetes' LeastAllocated over CPU and memory with equal weights."""
    BALANCED = "balanced"
    """Kubernetes' BalancedAllocation over CPU and memory, until 1.35."""
    BALANCE_CHANGE = "balance change"
    """Kubernetes' BalancedAllocation over CPU and memory, since 1.36."""


class IncrementalPlugin(Plugin):
    """A plugin that declares what its answers depend on."""

    by_class: ClassVar[bool] = False
    """Whether a refusal holds for all instances of equal shape, priority and profile until the table changes."""

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        """Return what can change the answer about a node.

        The framework also keeps a SKIP of a plugin that overrides this, until a node changes, or until a rule or a
        dedicated node of a placed instance comes or goes.
        """
        return Reach.CLUSTER

    def cache_key(self, request: PlacementRequest) -> Hashable:
        """Return the part of the request that the reach, the SKIPs and, with the reach `ATTRIBUTES`, the answers
        depend on. Requests with equal keys share them; the default is the whole class of the request."""
        return request.class_key


class IncrementalFilter(IncrementalPlugin, FilterPlugin, partial=True):
    """A Filter that can answer for some nodes."""

    fit_formula = False
    """Whether the Filter passes exactly the nodes that have all wanted amounts free; the framework computes that."""

    def __init_subclass__(cls, *, partial: bool = False) -> None:
        super().__init_subclass__(partial=partial)
        if "rules_out" not in vars(cls) and ("filter" in vars(cls) or "filter_node" in vars(cls)):
            # A subclass that filters in another way does not inherit this answer.
            cls.rules_out = IncrementalFilter.rules_out  # type: ignore[method-assign]

    def filter_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> bool:
        """Return the answer for one node; called only with the reach `ROOM`."""
        return bool(self.filter(CycleState(), request, nodes)[slot])

    def filter_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Mask:
        """Return the answers for some nodes; called only with the reach `ROOM`."""
        return self.filter(CycleState(), request, nodes)[at]

    def filter_cached(self, request: PlacementRequest, nodes: Snapshot) -> Mask:
        """Return `filter_at` for all nodes, from the cache where possible. The Filter has the reach `ROOM` and depends
        on nothing of the request but its shape."""
        if len(nodes) <= FEW:
            return np.array([self.filter_slot(request, nodes, slot) for slot in range(len(nodes))], dtype=np.bool_)
        return nodes._cached.mask((self, request.shape), lambda at: self.filter_at(request, nodes, at))

    def needs(self, request: PlacementRequest) -> Wanted | None:
        """Return the amounts that must be free on a node, if nothing else decides; None: other things decide, too."""
        return None

    def rules_out(self, request: PlacementRequest, node: Node) -> bool:
        """Return whether the node is refused as long as its attributes stay the same, whatever is placed there. Then
        changes of what is placed there do not wake the instance."""
        return False


class IncrementalScore(IncrementalPlugin, ScorePlugin, partial=True):
    """A Score that can answer for some nodes."""

    score_formula: Formula | None = None
    """Formula that gives exactly the scores of this plugin; the framework computes it."""

    def score_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> int:
        """Return the score of one node; called only with the reach `ROOM`."""
        return int(self.score_at(request, nodes, slice(slot, slot + 1))[0])

    def score_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Scores:
        """Return the scores of some nodes; called only with the reach `ROOM`."""
        return self.score(CycleState(), request, nodes, np.ones(len(nodes), dtype=np.bool_))[at]

    def score_cached(self, request: PlacementRequest, nodes: Snapshot) -> Scores:
        """Return `score_at` for all nodes, from the cache where possible. The Score has the reach `ROOM` and depends on
        nothing of the request but its shape."""
        if len(nodes) <= FEW:
            return np.array([self.score_slot(request, nodes, slot) for slot in range(len(nodes))], dtype=np.int64)
        return nodes._cached.scores((self, request.shape), lambda at: self.score_at(request, nodes, at))


class SteppedPostFilter(IncrementalPlugin, PostFilterPlugin, partial=True):
    """A PostFilter that works in steps; the scheduler runs other work between two of them."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__(partial=True)
        if "making_room" not in vars(cls) and ("make_room" in vars(cls) or "post_filter" in vars(cls)):
            # A subclass that defines another form does not inherit the steps.
            cls.making_room = SteppedPostFilter.making_room  # type: ignore[method-assign]

    def making_room(self, state: CycleState, dry_run: DryRun) -> Steps[Nomination | str | None]:
        """Return the same as `make_room`. Each step is a trial of its own and yields the work that it did."""
        yield from ()
        return self.make_room(state, dry_run)

    def offers(self, dry_run: DryRun) -> Iterable[Offer]:
        """Return what the plugin could nominate, for extenders that agree to victims before the cycle."""
        return ()


def reach_of(plugin: Plugin, request: PlacementRequest, nodes: Snapshot) -> Reach:
    """Return the reach that a plugin declares; plugins of other authors have the reach `CLUSTER`."""
    return plugin.reach(request, nodes) if isinstance(plugin, IncrementalPlugin) else Reach.CLUSTER


def declares_reach(plugin: Plugin) -> bool:
    return isinstance(plugin, IncrementalPlugin) and type(plugin).reach is not IncrementalPlugin.reach


def declares_cache_key(kind: type[Plugin]) -> bool:
    """Return whether a class of plugins declares both its reach and its cache key."""
    return (
        issubclass(kind, IncrementalPlugin)
        and kind.reach is not IncrementalPlugin.reach
        and kind.cache_key is not IncrementalPlugin.cache_key
    )
