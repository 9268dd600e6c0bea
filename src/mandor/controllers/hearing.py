"""Who is heard, and for how long who has been silent, on the observer's own clock."""

from collections.abc import Collection, Iterable, Set

from mandor.model.record import Lease

SERVER = "server-"
"""How the leases of API servers begin."""


_NOBODY: frozenset[str] = frozenset()


class Servers:
    """Which API servers live: those whose leases keep changing."""

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
        """The server's lease has changed."""
        self._until[server] = now + seconds

    def alive(self, now: float) -> frozenset[str]:
        return frozenset(server for server, until in self._until.items() if now < until)


class Ears(Servers):
    """Gathers what the servers hear. A server counts while its lease keeps changing.

    While nobody listens (no server lives, or the observer itself was paused) no silence counts,
    and afterwards everyone gets the whole grace again.
    """

    def __init__(self, *, gap_seconds: float) -> None:
        super().__init__()
        self._gap_seconds = gap_seconds
        self._heard_by: dict[str, frozenset[str]] = {}
        self._alive: frozenset[str] = frozenset()
        self._known: Collection[str] = ()
        """The nodes of the last `listen`."""
        self._silent: dict[str, float] = {}
        """Of those who were not heard then: when each last was."""
        self._listened_at: float | None = None
        self.heard: Set[str] = frozenset()
        """As of the last `listen`."""

    def hears(self, server: str, nodes: Iterable[str]) -> None:
        self._heard_by[server] = frozenset(nodes)

    def forget(self, server: str) -> None:
        self._heard_by.pop(server, None)

    def listen(self, nodes: Collection[str], now: float) -> None:
        """Take stock; called every second or so, about all nodes there are."""
        alive = self._alive = self.alive(now)
        each = [self._heard_by.get(server, _NOBODY) for server in alive]
        self.heard = each[0] if len(each) == 1 else _NOBODY.union(*each)
        before, known, last = self._silent, self._known, self._listened_at
        self._listened_at, self._known = now, nodes
        self._silent = dict.fromkeys((node for node in nodes if node not in self.heard), now)
        if alive and last is not None and now - last <= self._gap_seconds:
            for node in self._silent:
                self._silent[node] = before.get(node, last if node in known else now)

    def silence(self, node: str) -> float:
        """Seconds since it was last heard; for a node just met, since then."""
        if self._listened_at is None:
            return 0.0
        return self._listened_at - self._silent.get(node, self._listened_at)
