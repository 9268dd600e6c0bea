"""SchedulingGates: a workload with gates waits outside the queue until they are taken away."""

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.points import Happening, PreEnqueuePlugin


class SchedulingGates(PreEnqueuePlugin):
    """Nothing that happens in the cluster opens a gate; only its workload does."""

    name = "SchedulingGates"
    retry_on = frozenset[Happening]()

    def pre_enqueue(self, ask: Ask) -> str | None:
        return f"waits for {', '.join(ask.gates)}" if ask.gates else None
