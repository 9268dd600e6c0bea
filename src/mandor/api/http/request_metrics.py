"""RequestMetrics: counts and durations of requests, for the metrics page."""

from collections.abc import Iterator

from mandor.lib.metrics import Counts, Family, Spreads, counter, gauge, histogram


class RequestMetrics:
    def __init__(self) -> None:
        self._requests = Counts()
        self._durations = Spreads()
        self.in_flight = 0
        self.cut = 0
        """Connections that were closed because the client did not read its responses."""

    def answered(self, operation: str, status: int, seconds: float) -> None:
        self._requests[operation, str(status)] += 1
        self._durations[(operation,)].add(seconds)

    def families(self, streams: int) -> Iterator[Family]:
        yield counter(
            "mandor_api_requests_total", "Requests, by operation and HTTP status.", self._requests, "operation", "code"
        )
        yield histogram(
            "mandor_api_request_duration_seconds",
            "Seconds until the response was ready; for a stream, until it began.",
            self._durations,
            "operation",
        )
        yield gauge("mandor_api_requests_in_flight", "Requests in progress.", self.in_flight)
        yield counter(
            "mandor_api_connections_cut_total",
            "Connections closed because the client did not read its responses.",
            self.cut,
        )
        yield gauge("mandor_api_streams", "Open watches, log streams and other streaming responses.", streams)
