"""SchedulingGates: a workload with gates waits outside the queue until they are taken away."""

from mandor.placement.framework.points import ClusterEvent, PreEnqueuePlugin
from mandor.placement.framework.request import PlacementRequest


class SchedulingGates(PreEnqueuePlugin):
    """Nothing that happens in the cluster opens a gate; only its workload does."""

    name = "SchedulingGates"
    retry_on = frozenset[ClusterEvent]()

    def pre_enqueue(self, request: PlacementRequest) -> str | None:
        return f"waits for {', '.join(request.gates)}" if request.gates else None
