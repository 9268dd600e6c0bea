"""SchedulingGates: instances of a workload with gates are not queued until the gates are removed."""

from mandor.placement.framework.points import ClusterEvent, PreEnqueuePlugin
from mandor.placement.framework.request import PlacementRequest


class SchedulingGates(PreEnqueuePlugin):
    """No cluster event removes a gate; only a change of the workload does."""

    name = "SchedulingGates"
    retry_on = frozenset[ClusterEvent]()

    def pre_enqueue(self, request: PlacementRequest) -> str | None:
        return f"waits for {', '.join(request.gates)}" if request.gates else None
