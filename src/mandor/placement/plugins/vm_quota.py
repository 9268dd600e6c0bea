"""VMQuota: limits the virtual machines of a node, and prefers the node with the most left."""

import numpy as np
from msgspec import Struct

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore
from mandor.placement.framework.machine_quotas import FACT, UNBOUNDED, machine_quotas
from mandor.placement.framework.points import CAPACITY_EVENTS, SCORE_MOST, SKIP, PreFilterPlugin, PreScorePlugin, Skip
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class VMQuotaArgs(Struct, frozen=True, forbid_unknown_fields=True):
    fact: str = FACT
    """Fact or label with the maximum number of virtual machines."""
    quota: int | None = None
    """Limit of nodes without the fact; absent: no limit."""

    def __post_init__(self) -> None:
        if self.quota is not None and self.quota < 0:
            raise ValueError(f"quota is {self.quota}; it is 0 or more")


class VMQuota(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore):
    """A virtual machine is an instance with the engine option `type: virtual-machine`."""

    name = "VMQuota"
    Args = VMQuotaArgs
    retry_on = CAPACITY_EVENTS
    by_class = True

    def __init__(self, args: VMQuotaArgs | None = None) -> None:
        self._args = args or VMQuotaArgs()

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if request.shape.machine else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        below: Mask = nodes.machines < self._quotas(nodes)
        return below

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return "as many virtual machines as it may hold"

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if request.shape.machine else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        """Score the share of the quota that would be left."""
        quotas = self._quotas(nodes)
        left = np.maximum(quotas - nodes.machines - 1, 0)
        scores: Scores = left * SCORE_MOST // np.maximum(quotas, 1)
        return scores

    def _quotas(self, nodes: Snapshot) -> Scores:
        quota = self._args.quota
        return machine_quotas(nodes, self._args.fact, UNBOUNDED if quota is None else quota)
