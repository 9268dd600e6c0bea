"""InstanceLimit: a node takes no more instances than its fact or label `instances.max` allows."""

from collections.abc import Hashable

import numpy as np

from mandor.model.node import INSTANCES_MAX
from mandor.placement.framework.cached_columns import At
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, Reach
from mandor.placement.framework.machine_quotas import UNBOUNDED, machine_quotas
from mandor.placement.framework.points import CAPACITY_EVENTS, SKIP, PreFilterPlugin, Skip, tally
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class InstanceLimit(PreFilterPlugin, IncrementalFilter):
    """Counts all instances on the node, also those that are stopping, as Kubernetes counts pods."""

    name = "InstanceLimit"
    retry_on = CAPACITY_EVENTS
    by_class = True

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.ROOM

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return None

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if np.any(_limits(nodes) < UNBOUNDED) else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        below: Mask = nodes.instances < _limits(nodes)
        return below

    def filter_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Mask:
        below: Mask = nodes.instances[at] < _limits(nodes)[at]
        return below

    def filter_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> bool:
        return bool(nodes.instances[slot] < _limits(nodes)[slot])

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        limits = _limits(nodes)[refused].tolist()
        return tally(f"with {each} instances, its most" for each in limits)


def _limits(nodes: Snapshot) -> Scores:
    return machine_quotas(nodes, INSTANCES_MAX)
