"""Chooses the endpoint of a connection. Pure apart from the counts that each choice changes."""

import hashlib
from collections import OrderedDict
from collections.abc import Collection
from math import log

from mandor.network.base import Balance, Endpoint

AFFINITY_CLIENTS_MOST = 16_384  # remembered clients of one frontend


class Choice:
    """Endpoints of one frontend with their counts."""

    def __init__(self) -> None:
        self._endpoints: tuple[Endpoint, ...] = ()
        self._balance: Balance = "round-robin"
        self._affinity_seconds = 0.0
        self._current: dict[tuple[str, int], int] = {}
        self.active: dict[tuple[str, int], int] = {}
        """Open connections by address and port, also of endpoints that are gone."""
        self._clients: OrderedDict[str, tuple[tuple[str, int], float]] = OrderedDict()

    def update(self, endpoints: tuple[Endpoint, ...], balance: Balance, affinity_seconds: float) -> None:
        """Replace the endpoints and the rule of choice."""
        self._endpoints = tuple(each for each in endpoints if each.weight > 0)
        self._balance, self._affinity_seconds = balance, affinity_seconds
        known = {each[:2] for each in endpoints}
        self._current = {place: value for place, value in self._current.items() if place in known}
        if not affinity_seconds:
            self._clients.clear()

    @property
    def possible(self) -> bool:
        """Whether an endpoint takes new connections."""
        return bool(self._endpoints)

    def pick(self, client: str, now: float, failed: Collection[tuple[str, int]] = ()) -> tuple[str, int] | None:
        """Return address and port for a client; None: no endpoint is left that has not `failed`."""
        left = [each for each in self._endpoints if each[:2] not in failed]
        if not left:
            return None
        if not self._affinity_seconds:
            return self._pick(left, client)
        known = self._clients.get(client)
        if known is not None and known[1] > now and any(each[:2] == known[0] for each in left):
            place = known[0]
        else:
            place = self._pick(left, client)
        self._clients[client] = place, now + self._affinity_seconds
        self._clients.move_to_end(client)
        if len(self._clients) > AFFINITY_CLIENTS_MOST:
            self._clients.popitem(last=False)
        return place

    def _pick(self, left: list[Endpoint], client: str) -> tuple[str, int]:
        if self._balance == "hash":
            return max(left, key=lambda each: _score(client, each))[:2]
        if self._balance == "least":
            lowest = min(self.active.get(each[:2], 0) / each.weight for each in left)
            left = [each for each in left if self.active.get(each[:2], 0) / each.weight == lowest]
        for each in left:  # smooth weighted round-robin
            self._current[each[:2]] = self._current.get(each[:2], 0) + each.weight
        best = max(left, key=lambda each: self._current[each[:2]])[:2]
        self._current[best] -= sum(each.weight for each in left)
        return best


def _score(client: str, endpoint: Endpoint) -> float:
    """Weighted rendezvous hash: a change of one endpoint moves only the clients that it had or gets."""
    text = f"{client} {endpoint.address} {endpoint.port}".encode()
    value = (int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "big") + 1) / (2**56 + 2)
    return endpoint.weight / -log(value)
