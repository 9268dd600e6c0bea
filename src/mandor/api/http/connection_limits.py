"""ConnectionLimits: counts open connections by address and in all, and selects the one to close for a new one.

A connection is *unauthenticated* until a request on it has carried a valid token (or a client certificate).
Unauthenticated connections are limited by address and in all. A new connection over a limit closes the oldest
unauthenticated one that is older than `GRACE_SECONDS`; if there is none, the new connection is refused. Connections of
agents and components are never closed for another, and part of the limit is reserved for the addresses they come from.
The metrics' label for unauthenticated connections is `stranger`.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Literal

from mandor.api.caller import Caller
from mandor.lib.metrics import Counts, Family, counter, gauge

GRACE_SECONDS = 2.0
"""Minimum age of an unauthenticated connection before it is closed for another one."""
TRUSTED_FACTOR = 8
"""An address that has sent a valid token may have this many times more unauthenticated connections."""
TRUSTED_SECONDS = 3600.0
"""An address counts as trusted for this long after its last valid token."""
TRUSTED_MOST = 100_000  # addresses remembered

Lane = Literal["stranger", "user", "agent"]


class OpenConnection:
    """One open connection, from the moment it is accepted."""

    __slots__ = ("address", "close", "identity", "lane", "open", "since")

    def __init__(self, address: str, since: float, close: Callable[[], None]) -> None:
        self.address, self.since, self.close = address, since, close
        self.lane: Lane = "stranger"
        self.identity = ""
        self.open = True


class ConnectionLimits:
    """At most `most` connections in all, and `each` unauthenticated ones per address (an IPv6 /64 network is one)."""

    def __init__(self, most: int, each: int, now: Callable[[], float] = time.monotonic) -> None:
        self._most, self._each, self._now = most, each, now
        self._unauthenticated_most = max(1, most // 2)
        """Unauthenticated connections from addresses that are not trusted; the rest is reserved."""
        self._users_most, self._user_most = max(1, most // 2), max(1, most // 4)
        self._unauthenticated: dict[OpenConnection, None] = {}
        """Unauthenticated connections, the oldest first."""
        self._by_address: dict[str, dict[OpenConnection, None]] = {}
        self._by_user: Counter[str] = Counter()
        self._lanes: Counter[Lane] = Counter()
        self._trusted: dict[str, float] = {}
        self._closed = Counts()

    def enter(self, address: str, close: Callable[[], None]) -> OpenConnection | None:
        """Count a new connection, or return None to refuse it. `close` is called when another one takes its place."""
        address, now = network_of(address), self._now()
        trusted = self._trusted.get(address, -TRUSTED_SECONDS) > now - TRUSTED_SECONDS
        here = self._by_address.get(address, {})
        if len(here) >= self._each * (TRUSTED_FACTOR if trusted else 1) and not self._evict(here, now, "address"):
            return None
        if not trusted and len(self._unauthenticated) >= self._unauthenticated_most:  # noqa: SIM102 - separate conditions
            if not self._evict(self._unauthenticated, now, "strangers"):
                return None
        if self._lanes.total() >= self._most and not self._evict(self._unauthenticated, now, "all"):
            return None
        made = OpenConnection(address, now, close)
        self._unauthenticated[made] = None
        self._by_address.setdefault(address, {})[made] = None
        self._lanes["stranger"] += 1
        return made

    def identify(self, connection: OpenConnection, caller: Caller) -> None:
        """Record the caller of a connection.

        A user's connections beyond that user's share stay unauthenticated: they are served, and closed first.
        """
        if not connection.open or connection.identity == caller.identity:
            return
        self._trust(connection.address)
        if connection.lane != "stranger":
            return
        lane: Lane = "user" if caller.user else "agent"
        if lane == "user":
            if self._lanes["user"] >= self._users_most or self._by_user[caller.identity] >= self._user_most:
                return
            self._by_user[caller.identity] += 1
        self._drop_unauthenticated(connection)
        connection.lane, connection.identity = lane, caller.identity
        self._lanes[lane] += 1

    def leave(self, connection: OpenConnection) -> None:
        """Stop counting a connection that has ended; a second call changes nothing."""
        if not connection.open:
            return
        connection.open = False
        if connection.lane == "stranger":
            self._drop_unauthenticated(connection)
            return
        self._lanes[connection.lane] -= 1
        if connection.lane == "user":
            self._by_user[connection.identity] -= 1
            if not self._by_user[connection.identity]:
                del self._by_user[connection.identity]

    def families(self) -> Iterator[Family]:
        lanes: tuple[Lane, ...] = ("stranger", "user", "agent")
        open_now = {(lane,): float(self._lanes[lane]) for lane in lanes}
        yield gauge(
            "mandor_api_connections",
            "Open connections, by kind of caller (stranger: not authenticated).",
            open_now,
            "lane",
        )
        yield counter(
            "mandor_api_connections_limited_total",
            "Connections closed in favour of another, or refused, by the limit that was reached.",
            self._closed,
            *("limit", "outcome"),
        )

    def _evict(self, among: dict[OpenConnection, None], now: float, limit: str) -> bool:
        oldest = next(iter(among), None)
        if oldest is None or now - oldest.since < GRACE_SECONDS:
            self._closed[limit, "refused"] += 1
            return False
        self._closed[limit, "closed"] += 1
        self.leave(oldest)
        oldest.close()
        return True

    def _drop_unauthenticated(self, connection: OpenConnection) -> None:
        del self._unauthenticated[connection]
        here = self._by_address[connection.address]
        del here[connection]
        if not here:
            del self._by_address[connection.address]
        self._lanes["stranger"] -= 1

    def _trust(self, address: str) -> None:
        self._trusted.pop(address, None)
        self._trusted[address] = self._now()
        if len(self._trusted) > TRUSTED_MOST:
            del self._trusted[next(iter(self._trusted))]


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return the unit that is counted as one address: an IPv4 address, or the first 64 bits of an IPv6 address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
