"""The metrics of the scheduler."""

from collections.abc import Iterator

from mandor.lib.metrics import Counts, Family, Spread, counter, gauge, histogram, summary
from mandor.placement.decision import Decision
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.watchdog import SAMPLED, Watchdog

DECISION_SECONDS = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1)
WAIT_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
_RESULTS = {(True, False): "placed", (False, True): "fault", (False, False): "refused"}


class SchedulerMetrics:
    """Counters of the scheduler, exported by `families`."""

    def __init__(self) -> None:
        self.attempts = Counts()
        """Decisions by result and profile."""
        self.decisions = Spread(DECISION_SECONDS)
        self.waits = Spread(WAIT_SECONDS)
        self.taken_back = 0
        self.victims = 0

    def decided(self, profile: str, decision: Decision) -> None:
        result = "nominated" if decision.nominated else _RESULTS[bool(decision.node), bool(decision.fault)]
        self.attempts[result, profile] += 1

    def families(self, queue: SchedulingQueue, watchdog: Watchdog, nodes: int) -> Iterator[Family]:
        yield counter("mandor_scheduler_attempts_total", "Decisions by result.", self.attempts, "result", "profile")
        yield histogram(
            "mandor_scheduler_decision_duration_seconds",
            f"Duration of one decision in {SAMPLED}.",
            self.decisions,
        )
        yield histogram(
            "mandor_scheduler_wait_duration_seconds",
            "Time from the creation of an instance to its bind.",
            self.waits,
        )
        yield counter(
            "mandor_scheduler_taken_back_total",
            "Binds that were given up because the instance or its node had changed.",
            self.taken_back,
        )
        yield counter("mandor_scheduler_preempted_total", "Instances that were preempted.", self.victims)
        yield summary(
            "mandor_scheduler_plugin_duration_seconds",
            f"Time of plugin calls by point; built-in plugins are measured in one of {SAMPLED} decisions.",
            watchdog.spent,
            "point",
            "plugin",
        )
        lengths = {(place.value,): float(count) for place, count in queue.lengths().items()}
        yield gauge("mandor_scheduler_queue_instances", "Instances in the scheduling queue by state.", lengths, "place")
        yield gauge("mandor_scheduler_nodes", "Nodes in the scheduler's table.", nodes)
