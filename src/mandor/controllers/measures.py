"""What controllers count of themselves, for metrics."""

from collections.abc import Iterator, Mapping, Sized

from mandor.lib.metrics import Counts, Family, Spreads, counter, gauge, histogram


class Measures:
    def __init__(self) -> None:
        self.queues: Mapping[str, Sized] = {}
        """By controller."""
        self._reconciles = Counts()
        self._durations = Spreads()

    def reconciled(self, controller: str, result: str, seconds: float) -> None:
        self._reconciles[controller, result] += 1
        self._durations[(controller,)].add(seconds)

    def families(self) -> Iterator[Family]:
        yield counter(
            "mandor_controller_reconciles_total",
            "Keys that were looked at, by how it ended.",
            self._reconciles,
            "controller",
            "result",
        )
        yield histogram(
            "mandor_controller_reconcile_duration_seconds", "How long it took.", self._durations, "controller"
        )
        lengths = {(name,): float(len(queue)) for name, queue in self.queues.items()}
        yield gauge("mandor_controller_queue_keys", "Keys that wait or are in hand.", lengths, "controller")
