"""The cluster that the agent belongs to, and the time since it last answered."""

import logging
import threading
from collections.abc import Callable

from msgspec.structs import replace

from mandor.agent.journal import ClusterMembership, Journal, LastContact, SeenRevision
from mandor.errors import Forbidden, Unavailable
from mandor.lib.clock import Clock
from mandor.model.record import ClusterSpec
from mandor.store.base import Store, Write
from mandor.store.wrapper import StoreWrapper

log = logging.getLogger(__name__)

SPREAD_SECONDS = 3.0
"""Seconds after a heartbeat until all servers have it: they exchange heartbeats once a second."""


class ClusterContact:
    """Tracks cluster membership and the time of the last answer, both saved in the journal."""

    def __init__(self, journal: Journal, clock: Clock, boot: str) -> None:
        self._journal, self._clock, self._boot = journal, clock, boot
        self._membership = self._saved = journal.membership
        last = journal.contact
        same_boot = last is not None and last.boot == boot and last.monotonic <= clock.monotonic()
        self._answered_at: float | None = last.monotonic if last is not None and same_boot else None
        self._began = clock.monotonic()
        self._gap, self._gap_over = 0.0, self._began
        """Length of the last silence, and when it ended."""
        self.foreign = False
        """Whether the last answer came from another cluster."""
        self._seen = self._kept_seen = journal.seen or SeenRevision()
        """Highest revision of orders that this agent has seen, with its cluster and epoch."""
        self._saving = threading.Lock()

    @property
    def membership(self) -> ClusterMembership | None:
        return self._membership

    @property
    def recent_silence(self) -> float:
        """Seconds of a silence that ended so recently that some servers may not have the heartbeat yet; 0: none.

        Infinite if the control plane has not answered since this machine booted.
        """
        if self._answered_at is None:
            return float("inf")
        return self._gap if self._clock.monotonic() - self._gap_over < SPREAD_SECONDS else 0.0

    @property
    def silence(self) -> float:
        """Seconds since a heartbeat was answered; if none was, since this agent started."""
        since = self._began if self._answered_at is None else self._answered_at
        return max(0.0, self._clock.monotonic() - since)

    def check(self, cluster: ClusterSpec) -> None:
        """Record the cluster that answers; raise `Forbidden` if it is not the one that this node belongs to."""
        mine = self._membership
        self.foreign = mine is not None and mine.id != cluster.id
        if mine is None:
            log.info("this node now belongs to cluster %s, epoch %d", cluster.id, cluster.epoch)
        elif self.foreign:
            raise Forbidden(
                f"the server belongs to cluster {cluster.id}, but this node belongs to {mine.id}: orders refused",
                hint="point the agent at its own cluster, or give it another data directory to join this one",
            )
        elif mine.epoch != cluster.epoch:
            log.warning("cluster %s changed from epoch %d to %d", cluster.id, mine.epoch, cluster.epoch)
        if mine is None or mine.epoch != cluster.epoch:
            self._membership = ClusterMembership(cluster.id, cluster.epoch)
        if (self._seen.cluster, self._seen.epoch) != (cluster.id, cluster.epoch):
            self._seen = SeenRevision(cluster.id, cluster.epoch)
        self._save_membership()

    def check_revision(self, revision: int) -> None:
        """Raise `Unavailable` for a list of orders that is older than orders that this agent has seen.

        It comes from a server that is behind the store, and may contain instances that have ended.
        """
        if revision < self._seen.revision:
            raise Unavailable(
                f"the server is behind: it lists orders of revision {revision}, "
                f"this node has seen {self._seen.revision}",
                hint="the agent tries another server; running instances are not affected",
            )
        self.saw_revision(revision)

    def saw_revision(self, revision: int) -> None:
        """Record the revision of orders."""
        if revision > self._seen.revision:
            self._seen = replace(self._seen, revision=revision)

    def keep_revision(self) -> None:
        """Save the highest revision, so that the next agent process rejects older lists; blocks.

        Raise `OSError` if it cannot be saved: an instance that is forgotten without it may be started again.
        """
        with self._saving:
            seen = self._seen
            if seen != self._kept_seen:
                self._journal.keep_seen(seen)
                self._kept_seen = seen

    def answered(self, at: float) -> None:
        """Record that the heartbeat sent at `at` was answered."""
        gap = at - self._answered_at if self._answered_at is not None else float("inf")
        if gap >= self.recent_silence:
            self._gap, self._gap_over = gap, self._clock.monotonic()
        self._answered_at = max(at, self._answered_at) if self._answered_at is not None else at
        try:
            self._journal.touch(LastContact(self._boot, self._answered_at))
        except OSError as error:
            log.warning("cannot save the time of the last answer: %s", error)

    def _save_membership(self) -> None:
        """Save the membership; on a full disk the next answer of the cluster tries again."""
        if self._membership is None or self._membership == self._saved:
            return
        try:
            self._journal.keep_membership(self._membership)
        except OSError as error:
            log.warning("cannot save the cluster that this node belongs to: %s", error)
        else:
            self._saved = self._membership


class OwnClusterStore(StoreWrapper):
    """A store that refuses to write while a server of another cluster answers."""

    def __init__(self, store: Store, foreign: Callable[[], bool]) -> None:
        super().__init__(store)
        self._foreign = foreign

    async def commit(self, *writes: Write) -> int:
        if self._foreign():
            raise Unavailable("a server of another cluster answers: nothing is written to it")
        return await self._store.commit(*writes)
