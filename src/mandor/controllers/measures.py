"""Counts reconciliations for the metrics."""

from collections.abc import Iterator, Mapping, Sized

from mandor.lib.metrics import Counts, Family, Spreads, counter, gauge, histogram


class Measures:
    def __init__(self) -> None:
        self.queues: Mapping[str, Sized] = {}
        """Queues by controller."""
        self._reconciles = Counts()
        self._durations = Spreads()

    def reconciled(self, controller: str, result: str, seconds: float) -> None:
        self._reconciles[controller, result] += 1
        self._durations[(controller,)].add(seconds)

    def families(self) -> Iterator[Family]:
        yield counter(
            "mandor_controller_reconciles_total",
            "Reconciliations, by controller and result.",
            self._reconciles,
            "controller",
            "result",
        )
        yield histogram(
            "mandor_controller_reconcile_duration_seconds", "Seconds per reconciliation.", self._durations, "controller"
        )
        lengths = {(name,): float(len(queue)) for name, queue in self.queues.items()}
        yield gauge("mandor_controller_queue_keys", "Keys that are queued or being reconciled.", lengths, "controller")
