"""Which cluster this agent belongs to, and how long it has not heard of it."""

import logging
from collections.abc import Callable

from mandor.agent.journal import ClusterMembership, Journal, LastContact
from mandor.errors import Forbidden, Unavailable
from mandor.lib.clock import Clock
from mandor.model.record import ClusterSpec
from mandor.store.base import Store, Write
from mandor.store.wrapper import StoreWrapper

log = logging.getLogger(__name__)

TOLD_SECONDS = 3.0
"""A server that hears a node tells the others once a second: by then none of them gives it up any more, or it has."""


class ClusterContact:
    def __init__(self, journal: Journal, clock: Clock, boot: str) -> None:
        self._journal, self._clock, self._boot = journal, clock, boot
        self._membership = journal.membership
        last = journal.contact
        same_boot = last is not None and last.boot == boot and last.monotonic <= clock.monotonic()
        self._heard: float | None = last.monotonic if last is not None and same_boot else None
        self._began = clock.monotonic()
        self._gap, self._gap_over = 0.0, self._began
        """The silence that was broken last, and when."""
        self.foreign = False
        """The last answer came from another cluster."""

    @property
    def membership(self) -> ClusterMembership | None:
        return self._membership

    @property
    def away(self) -> float:
        """How long the silence was that was broken so lately that not the whole control plane need know; 0: none was.

        Without end, where the control plane has not been heard since this machine booted.
        """
        if self._heard is None:
            return float("inf")
        return self._gap if self._clock.monotonic() - self._gap_over < TOLD_SECONDS else 0.0

    @property
    def silence(self) -> float:
        """Seconds since a heartbeat was answered; if none ever was, since this agent began to listen."""
        since = self._began if self._heard is None else self._heard
        return max(0.0, self._clock.monotonic() - since)

    def check(self, cluster: ClusterSpec) -> None:
        """`Forbidden` for a foreign cluster: nothing that it says is for this agent."""
        mine = self._membership
        self.foreign = mine is not None and mine.id != cluster.id
        if mine is None:
            log.info("this node belongs to cluster %s, epoch %d", cluster.id, cluster.epoch)
            self._keep_membership(ClusterMembership(cluster.id, cluster.epoch))
            return
        if self.foreign:
            raise Forbidden(
                f"the server speaks for cluster {cluster.id}, and this node belongs to {mine.id}: no order is taken",
                hint="point the agent at its own cluster, or give it another data directory to join this one",
            )
        if mine.epoch != cluster.epoch:
            log.warning("cluster %s is in epoch %d now; it was %d", cluster.id, cluster.epoch, mine.epoch)
            self._keep_membership(ClusterMembership(cluster.id, cluster.epoch))

    def heard(self, at: float) -> None:
        """A heartbeat that was sent then has been answered."""
        gap = at - self._heard if self._heard is not None else float("inf")
        if gap >= self.away:
            self._gap, self._gap_over = gap, self._clock.monotonic()
        self._heard = max(at, self._heard) if self._heard is not None else at
        try:
            self._journal.touch(LastContact(self._boot, self._heard))
        except OSError as error:
            log.warning("the time of the last answer cannot be kept: %s", error)

    def _keep_membership(self, membership: ClusterMembership) -> None:
        self._membership = membership
        self._journal.keep_membership(membership)


class OwnClusterStore(StoreWrapper):
    """A store that refuses to write while a server of another cluster answers."""

    def __init__(self, store: Store, foreign: Callable[[], bool]) -> None:
        super().__init__(store)
        self._foreign = foreign

    async def commit(self, *writes: Write) -> int:
        if self._foreign():
            raise Unavailable("a server of another cluster answers: nothing is written to it")
        return await self._store.commit(*writes)
