"""Counters and limits of the relay process and of one frontend."""

from mandor.network.base import Traffic
from mandor.network.relay.choice import Choice


class Limit:
    """Bound on open connections and flows of the process; one service gets at most half."""

    def __init__(self, most: int) -> None:
        self.most, self.open = most, 0

    def allows(self, of_service: int) -> bool:
        """Return whether a service with this number of open connections can have one more."""
        return self.open < self.most and of_service < max(1, self.most // 2)


class Load:
    """Connections, flows and bytes of one frontend, and the choice of its endpoints."""

    def __init__(self, limit: Limit) -> None:
        self.limit, self.choice = limit, Choice()
        self.open = self.connections = self.sent = self.received = self.failures = 0

    @property
    def traffic(self) -> Traffic:
        """Counters since the process started."""
        return Traffic(self.connections, self.sent, self.received, self.failures)

    def opened(self, place: tuple[str, int]) -> None:
        """Count a connection to an endpoint."""
        self.choice.active[place] = self.choice.active.get(place, 0) + 1

    def closed(self, place: tuple[str, int]) -> None:
        """Count the end of a connection to an endpoint."""
        left = self.choice.active.pop(place, 1) - 1
        if left > 0:
            self.choice.active[place] = left
