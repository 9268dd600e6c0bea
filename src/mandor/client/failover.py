"""Fail-over between the servers of a cluster: the order in which they are tried, and when a request is sent again.

Both clients use it. A request that did not reach a server goes to the next one. A request that may have been
executed goes to the next one only if it is repeatable. A busy server gets the same request again after a pause.
"""

import random
from collections.abc import Iterable
from typing import Generic, TypeVar

from mandor.errors import MandorError, TooMany

S = TypeVar("S")

DOUBT_SECONDS = 2.5
"""Seconds without an answer after which a client that knows several servers checks whether the server is alive."""
LIFE_SECONDS = 3.0
"""Seconds in which a server must answer that check; an alive server may take any time for its answer."""
LIFE_PATH = "/healthz"
TRIES = 4
"""Attempts of a request that a busy server turns away."""
PAUSE_SECONDS_MOST = 10.0
"""Longest pause in seconds that a busy server may ask for before the client gives up."""


class ServerList(Generic[S]):
    """The servers of a cluster, the one to try first in front."""

    def __init__(self, servers: Iterable[S]) -> None:
        self._servers = list(servers)

    @property
    def first(self) -> S:
        return self._servers[0]

    @property
    def several(self) -> bool:
        return len(self._servers) > 1

    def in_order(self) -> list[S]:
        """Return a copy, which does not change while requests fail."""
        return list(self._servers)

    def prefer(self, server: S) -> None:
        """Try this server first from now on; the order of the others stays the same."""
        self._rotate(self._servers.index(server))

    def leave(self, server: S) -> None:
        """Try the next server first if this one was; another request may have left it already."""
        if self.first == server:
            self._rotate(1)

    def _rotate(self, count: int) -> None:
        self._servers = self._servers[count:] + self._servers[:count]


def repeatable(method: str) -> bool:
    """Return whether a request may be sent again although it may have been executed."""
    return method == "GET"


def pause_before(tries: int, error: MandorError) -> float | None:
    """Return the seconds to wait before a request that a busy server turned away is sent again; None: it is not.

    The pause is spread randomly, so that requests that were turned away together do not return together.
    """
    seconds = error.facts.get("seconds") if isinstance(error, TooMany) else None
    if not isinstance(seconds, int | float) or seconds > PAUSE_SECONDS_MOST or tries >= TRIES:
        return None
    return max(0.1, seconds) * (1 + random.random())
