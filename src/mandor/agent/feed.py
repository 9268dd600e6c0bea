"""Follows this node's objects, of one kind or several, and knows whose word it is that something is absent."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from mandor.errors import Expired, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.silence import Silence
from mandor.model.meta import Object
from mandor.model.record import ClusterSpec
from mandor.store.base import Change, Filter, Store

log = logging.getLogger(__name__)

STALL_SECONDS = 45.0
BACKOFF = Backoff(0.5, 15, jitter=0.4)


class Source(NamedTuple):
    """The cluster, epoch and revision that a list or change was read from."""

    cluster: str
    epoch: int
    revision: int


class Reader(Protocol):
    """Who is told."""

    def listed(self, items: Sequence[Object], source: Source) -> None:
        """Everything there is, at one revision of one cluster."""

    def changed(self, change: Change, source: Source) -> None:
        """What happened after that; never a bookmark."""

    def lost(self, error: MandorError, failures: int) -> None:
        """The control plane does not answer, or not for us; so often in a row."""


class KindRouter:
    """Tells each reader of its kind of objects: one stream for all costs the control plane a quarter of four."""

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
    """List, then watch; after a break the watch goes on where it was, if the same cluster still answers."""

    def __init__(
        self,
        store: Store,
        kind: str | None,
        where: Filter,
        clock: Clock,
        reader: Reader,
        whose: Callable[[], Awaitable[ClusterSpec]],
        *,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        """`stall_seconds`: a watch that is silent for so long is dead."""
        self._store, self._kind, self._clock = store, kind, clock
        self._where, self._stall_seconds = where, stall_seconds
        self._reader, self._whose = reader, whose
        self._revision: int | None = None
        self._cluster: ClusterSpec | None = None
        self._failures = 0

    async def run(self) -> None:
        while True:
            try:
                await self._follow()
            except MandorError as error:
                self._failures += 1
                if isinstance(error, Expired):
                    self._revision = None
                else:
                    self._reader.lost(error, self._failures)
                if not isinstance(error, Expired) or self._failures > 1:
                    await self._clock.sleep(BACKOFF.pause(self._failures))

    async def _follow(self) -> None:
        cluster = await self._whose()
        if cluster != self._cluster or self._revision is None:
            await self._list(cluster)
        assert self._revision is not None
        await self._watch(cluster, self._revision)

    async def _list(self, cluster: ClusterSpec) -> None:
        listing = await self._store.list(self._kind, self._where)
        if await self._whose() != cluster:
            raise Unavailable("the cluster changed while its orders were read")
        self._cluster, self._revision = cluster, listing.revision
        self._reader.listed(listing.items, Source(cluster.id, cluster.epoch, listing.revision))

    async def _watch(self, cluster: ClusterSpec, since: int) -> None:
        stream = self._store.watch(self._kind, since=since, where=self._where)
        sure = False
        try:
            async with Silence(self._stall_seconds) as silence:
                async for batch in stream:
                    silence.broken()
                    if not sure:
                        # The stream stands now: whoever answers is the one it comes from.
                        if await self._whose() != cluster:
                            self._revision = None
                            raise Unavailable("another cluster answers now")
                        sure, self._failures = True, 0
                    self._take(batch, cluster)
            raise Unavailable("the watch ended")
        except TimeoutError:
            raise Unavailable("the watch fell silent") from None
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()

    def _take(self, batch: Sequence[Change], cluster: ClusterSpec) -> None:
        for change in batch:
            if not change.bookmark:
                self._reader.changed(change, Source(cluster.id, cluster.epoch, change.revision))
            self._revision = change.revision
