"""HeartbeatReceiver: collects the heartbeats that API servers received, with times on the observer's clock."""

from collections.abc import Collection, Iterable, Set

from mandor.model.record import Lease

SERVER = "server-"
"""Prefix of the names of API servers' leases."""


_NO_KEY: frozenset[str] = frozenset()


class Servers:
    """API servers that are alive: those whose leases keep changing."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def observe(self, lease: Lease, now: float, *, gone: bool) -> None:
        if not lease.meta.name.startswith(SERVER):
            return
        server = lease.meta.name.removeprefix(SERVER)
        if gone:
            self._until.pop(server, None)
        else:
            self.renewed(server, lease.spec.seconds, now)

    def renewed(self, server: str, seconds: float, now: float) -> None:
        """Record that the server's lease has changed."""
        self._until[server] = now + seconds

    def alive(self, now: float) -> frozenset[str]:
        return frozenset(server for server, until in self._until.items() if now < until)


class HeartbeatReceiver(Servers):
    """Combines the heartbeat summaries of all live API servers.

    While no server is live, or this process was paused, the time without heartbeats does not count; afterwards it
    starts again for all nodes.
    """

    def __init__(self, *, gap_seconds: float) -> None:
        super().__init__()
        self._gap_seconds = gap_seconds
        self._heard_by: dict[str, frozenset[str]] = {}
        self._alive: frozenset[str] = frozenset()
        self._known: Collection[str] = ()
        """Nodes of the last `evaluate` call."""
        self._silent: dict[str, float] = {}
        """Time of the last heartbeat of nodes without one in the last `evaluate` call."""
        self._listened_at: float | None = None
        self.heard: Set[str] = frozenset()
        """Nodes with heartbeats in the last `evaluate` call."""

    def receive(self, server: str, nodes: Iterable[str]) -> None:
        self._heard_by[server] = frozenset(nodes)

    def forget(self, server: str) -> None:
        self._heard_by.pop(server, None)

    def evaluate(self, nodes: Collection[str], now: float) -> None:
        """Evaluate the heartbeats of all nodes; called about every second."""
        alive = self._alive = self.alive(now)
        each = [self._heard_by.get(server, _NO_KEY) for server in alive]
        self.heard = each[0] if len(each) == 1 else _NO_KEY.union(*each)
        before, known, last = self._silent, self._known, self._listened_at
        self._listened_at, self._known = now, nodes
        self._silent = dict.fromkeys((node for node in nodes if node not in self.heard), now)
        if alive and last is not None and now - last <= self._gap_seconds:
            for node in self._silent:
                self._silent[node] = before.get(node, last if node in known else now)

    def silence(self, node: str) -> float:
        """Return the seconds since the last heartbeat; for a new node, since it was first seen."""
        if self._listened_at is None:
            return 0.0
        return self._listened_at - self._silent.get(node, self._listened_at)
