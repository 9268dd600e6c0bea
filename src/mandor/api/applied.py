"""Revisions of services that the data paths of nodes have applied; a stopping instance waits for them.

An agent reports, for each namespace whose services its data path balances, the revision of the store that is in effect
there. An instance whose stop order has this or an earlier revision gets no new connections from that node any more.
The agent of a stopping instance waits for that with one request, which the server answers when all nodes have reported.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct

from mandor.lib.clock import Clock, wait_event

NAMESPACES_MOST = 1000
"""Largest number of namespaces in one report."""
SETTLE_SECONDS = 15.0
"""Seconds after the start of a server in which nodes may not have reported to it yet; agents report every ten."""
WAIT_SECONDS = 2.0
"""Longest time until a request with `asks` is answered."""
BURST_SECONDS = 0.01
"""Seconds within which reports of several nodes are combined."""


class AppliedReport(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """What the data path of one node has applied."""

    namespaces: Annotated[dict[str, int], Note(max_length=NAMESPACES_MOST)] | None = None
    """Revision in effect by namespace; namespaces that are absent are not balanced by the node. None: as last reported.
    """
    asks: Annotated[dict[str, int], Note(max_length=NAMESPACES_MOST)] = {}
    """Revisions to wait for, by namespace."""


class AppliedAnswer(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What the data paths of all live nodes have applied."""

    complete: bool
    """Whether every live node has had time to report; if not, `lowest` can be too high."""
    lowest: dict[str, int] = {}
    """Lowest revision in effect on any node, by requested namespace; absent: no node balances it."""

    def reaches(self, asks: Mapping[str, int]) -> bool:
        """Return whether all nodes have applied these revisions."""
        return self.complete and all(self.lowest.get(name, wanted) >= wanted for name, wanted in asks.items())


class AppliedRevisions:
    """The reports of the nodes whose heartbeats arrive at this server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._complete_at = clock.monotonic() + SETTLE_SECONDS
        self._by_node: dict[str, Mapping[str, int]] = {}
        self._lowest: dict[str, int] | None = None
        """Lowest revision of each namespace; None: reports have changed since it was computed."""
        self._waiting: dict[str, asyncio.Event] = {}
        """The waiting request of each node: it may have one."""

    def report(self, node: str, namespaces: Mapping[str, int]) -> bool:
        """Replace the report of a node; return whether it differs from the last one."""
        if namespaces == self._by_node.get(node, {}):
            return False
        self._by_node[node] = namespaces
        self._changed()
        return True

    def forget(self, node: str) -> None:
        """Ignore a node whose heartbeats have stopped."""
        if self._by_node.pop(node, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self._lowest = None
        for event in self._waiting.values():
            event.set()

    async def wait(self, node: str, seconds: float) -> bool:
        """Wait for the next change of the reports, at most for `seconds`; False: the node has sent a newer request."""
        event = asyncio.Event()
        before, self._waiting[node] = self._waiting.get(node), event
        if before is not None:
            before.set()
        try:
            await wait_event(self._clock, seconds, event)
            if self._waiting.get(node) is event:
                await self._clock.sleep(BURST_SECONDS)
            return self._waiting.get(node) is event
        finally:
            if self._waiting.get(node) is event:
                del self._waiting[node]

    @property
    def complete(self) -> bool:
        """Whether every live node has had time to report since this server started."""
        return self._clock.monotonic() >= self._complete_at

    def begin_without_nodes(self) -> None:
        """Take note that the cluster had no nodes when this server started, so that there are none to wait for."""
        self._complete_at = self._clock.monotonic()

    def lowest(self) -> dict[str, int]:
        """Return the lowest revision of each namespace."""
        if self._lowest is None:
            self._lowest = lowest_of(self._by_node.values())
        return self._lowest


def lowest_of(reports: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the lowest revision of each namespace over all reports that have it."""
    found: dict[str, int] = {}
    for each in reports:
        for namespace, revision in each.items():
            found[namespace] = min(revision, found.get(namespace, revision))
    return found
