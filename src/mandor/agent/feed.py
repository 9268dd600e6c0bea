"""Lists and watches objects of one or several kinds, with the cluster, epoch and revision that they come from."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mandor.errors import Expired, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.meta import Object
from mandor.model.record import ClusterSpec
from mandor.store.base import Change, Filter, Listing, Store
from mandor.store.list_watch import ListWatch

log = logging.getLogger(__name__)

STALL_SECONDS = 45.0
BACKOFF = Backoff(0.5, 15, jitter=0.4)


class Source(NamedTuple):
    """The cluster, epoch and revision that a list or change was read from."""

    cluster: str
    epoch: int
    revision: int


class Reader(Protocol):
    """Receives what a feed reads."""

    def listed(self, items: Sequence[Object], source: Source) -> None:
        """Take all objects, as of one revision of one cluster."""

    def changed(self, change: Change, source: Source) -> None:
        """Take a later change; bookmarks are left out."""

    def lost(self, error: MandorError, failures: int) -> None:
        """Called when the control plane does not answer or refuses; `failures`: how often in a row."""


class KindRouter:
    """Passes objects to one reader per kind, so that one watch serves all of them."""

    def __init__(self, readers: Mapping[str, Reader]) -> None:
        self._readers = readers

    def listed(self, items: Sequence[Object], source: Source) -> None:
        for kind, reader in self._readers.items():
            reader.listed([each for each in items if each.kind == kind], source)

    def changed(self, change: Change, source: Source) -> None:
        self._readers[change.value.kind].changed(change, source)

    def lost(self, error: MandorError, failures: int) -> None:
        for reader in self._readers.values():
            reader.lost(error, failures)


class Feed:
    """Lists, then watches; an interrupted watch is resumed if the same cluster still answers."""

    def __init__(
        self,
        store: Store,
        kind: str | None,
        where: Filter,
        clock: Clock,
        reader: Reader,
        read_cluster: Callable[[], Awaitable[ClusterSpec]],
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """`stall_seconds`: a watch without data for this time is considered dead."""
        self._reader, self._read_cluster = reader, read_cluster
        self._follow = ListWatch(
            store, kind, where, backoff=BACKOFF, sleep=clock.sleep, resume=True, stall_seconds=stall_seconds
        )
        self._cluster: ClusterSpec | None = None
        """Cluster of the last listing."""
        self._verified = False
        """Whether this attempt's watch is known to come from that cluster."""

    async def run(self) -> None:
        await self._follow.run(self._listed, self._changed, self._failed, self._starting)

    async def _starting(self) -> None:
        self._verified = False
        cluster = await self._read_cluster()
        if cluster != self._cluster:
            self._cluster, self._follow.revision = cluster, None

    async def _listed(self, listing: Listing) -> None:
        cluster = self._cluster
        assert cluster is not None
        if await self._read_cluster() != cluster:
            raise Unavailable("another cluster answered while the orders were listed")
        self._reader.listed(listing.items, Source(cluster.id, cluster.epoch, listing.revision))

    async def _changed(self, batch: Sequence[Change]) -> None:
        cluster = self._cluster
        assert cluster is not None
        if not self._verified:
            # The watch is established: the cluster that answers now is the one it comes from.
            if await self._read_cluster() != cluster:
                self._follow.revision = None
                raise Unavailable("another cluster answers now")
            self._verified = True
        for change in batch:
            if not change.bookmark:
                self._reader.changed(change, Source(cluster.id, cluster.epoch, change.revision))

    def _failed(self, error: MandorError, failures: int) -> None:
        if not isinstance(error, Expired):
            self._reader.lost(error, failures)
