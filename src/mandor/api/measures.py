"""What the API counts of itself, for metrics."""

from collections.abc import Iterator

from mandor.lib.metrics import Counts, Family, Spreads, counter, gauge, histogram


class Measures:
    def __init__(self) -> None:
        self._requests = Counts()
        self._durations = Spreads()
        self.in_flight = 0
        self.cut = 0
        """Connections that were ended because nothing was read from them."""

    def answered(self, operation: str, status: int, seconds: float) -> None:
        self._requests[operation, str(status)] += 1
        self._durations[(operation,)].add(seconds)

    def families(self, streams: int) -> Iterator[Family]:
        yield counter(
            "mandor_api_requests_total", "Requests, by operation and status.", self._requests, "operation", "code"
        )
        yield histogram(
            "mandor_api_request_duration_seconds",
            "Until the answer was ready; of a stream, until it began.",
            self._durations,
            "operation",
        )
        yield gauge("mandor_api_requests_in_flight", "Requests that are being answered.", self.in_flight)
        yield counter("mandor_api_connections_cut_total", "Connections ended because nobody read from them.", self.cut)
        yield gauge("mandor_api_streams", "Watches and other answers that go on.", streams)
