"""Which cluster this agent belongs to, and how long it has not heard of it."""

import logging

from mandor.agent.journal import Belonging, Contact, Journal
from mandor.errors import Forbidden
from mandor.lib.clock import Clock
from mandor.model.record import ClusterSpec

log = logging.getLogger(__name__)

KEEP_SECONDS = 5.0
"""The time of the last answer is written down no more often than that."""
TOLD_SECONDS = 3.0
"""A server that hears a node tells the others once a second: by then none of them gives it up any more, or it has."""


class Presence:
    def __init__(self, journal: Journal, clock: Clock, boot: str) -> None:
        self._journal, self._clock, self._boot = journal, clock, boot
        self._belonging = journal.belonging
        contact = journal.contact
        same_boot = contact is not None and contact.boot == boot and contact.monotonic <= clock.monotonic()
        self._heard: float | None = contact.monotonic if contact is not None and same_boot else None
        self._first = self._heard
        """When the first heartbeat since the boot was answered."""
        self._began = clock.monotonic()
        self._kept = -KEEP_SECONDS
        self.foreign = False
        """The last answer came from another cluster."""

    @property
    def belonging(self) -> Belonging | None:
        return self._belonging

    @property
    def heard_since_boot(self) -> bool:
        """For so long that the whole control plane knows."""
        return self._first is not None and self._clock.monotonic() - self._first >= TOLD_SECONDS

    @property
    def silence(self) -> float:
        """Seconds since a heartbeat was answered; if none ever was, since this agent began to listen."""
        since = self._began if self._heard is None else self._heard
        return max(0.0, self._clock.monotonic() - since)

    def check(self, cluster: ClusterSpec) -> None:
        """`Forbidden` for a foreign cluster: nothing that it says is for this agent."""
        mine = self._belonging
        self.foreign = mine is not None and mine.id != cluster.id
        if mine is None:
            log.info("this node belongs to cluster %s, epoch %d", cluster.id, cluster.epoch)
            self._belong(Belonging(cluster.id, cluster.epoch))
            return
        if self.foreign:
            raise Forbidden(
                f"the server speaks for cluster {cluster.id}, and this node belongs to {mine.id}: no order is taken",
                hint="point the agent at its own cluster, or give it another data directory to join this one",
            )
        if mine.epoch != cluster.epoch:
            log.warning("cluster %s is in epoch %d now; it was %d", cluster.id, cluster.epoch, mine.epoch)
            self._belong(Belonging(cluster.id, cluster.epoch))

    def heard(self, at: float) -> None:
        """A heartbeat that was sent then has been answered."""
        self._heard = max(at, self._heard) if self._heard is not None else at
        self._first = self._heard if self._first is None else self._first
        now = self._clock.monotonic()
        if now - self._kept >= KEEP_SECONDS:
            self._kept = now
            try:
                self._journal.touch(Contact(self._boot, self._heard))
            except OSError as error:
                log.warning("the time of the last answer cannot be kept: %s", error)

    def _belong(self, belonging: Belonging) -> None:
        self._belonging = belonging
        self._journal.belong(belonging)
