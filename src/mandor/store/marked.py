"""MarkedStore: keeps the marker file at the highest revision that was committed."""

import asyncio
from contextlib import suppress

from mandor.errors import Invalid, MandorError
from mandor.model.record import ClusterSpec
from mandor.store.base import Store, Write
from mandor.store.marker import Marker, MarkerContent
from mandor.store.wrapper import StoreWrapper

SYNC_SECONDS = 1.0  # between two fsyncs of the marker file


class MarkedStore(StoreWrapper):
    """A commit returns after the marker holds its revision."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._marker: Marker | None = None

    def use(self, marker: Marker) -> None:
        self._marker = marker

    async def commit(self, *writes: Write) -> int:
        revision = await self._store.commit(*writes)
        if self._marker is not None:
            self._marker.raise_to(revision)
        return revision

    async def run(self) -> None:
        """Sync the marker, and note what other servers of the cluster have committed."""
        while self._marker is not None:
            await asyncio.sleep(SYNC_SECONDS)
            with suppress(MandorError):  # the store's own health check reports it
                self._marker.raise_to((await self._store.list("cluster")).revision)
            await asyncio.to_thread(self._marker.sync)

    async def close(self) -> None:
        """Close the marker; the store stays open."""
        if self._marker is not None:
            self._marker.close()
            self._marker = None

    async def problems(self) -> tuple[str, ...]:
        found = tuple(await self._store.problems())
        return (*found, self._marker.trouble) if self._marker is not None and self._marker.trouble else found


def check_not_older(found: ClusterSpec | None, revision: int, known: MarkerContent, *, accept_older: bool) -> None:
    """Raise `Invalid` unless the store holds the cluster of the marker file, at the same revision or a later one."""
    if found is None:
        raise Invalid(
            f"the store is empty; it held cluster {known.cluster} up to revision {known.revision}",
            hint="is --store right? `mandor recover` or `mandor restore` bring a lost state back",
        )
    if found.id != known.cluster:
        raise Invalid(
            f"the store holds cluster {found.id}, and this data directory belongs to cluster {known.cluster}",
            hint="give the server of another cluster another --data directory",
        )
    if (found.epoch, revision) >= (known.epoch, known.revision):
        return
    if not accept_older:
        raise Invalid(
            f"the store is older than it was: epoch {found.epoch}, revision {revision}; "
            f"epoch {known.epoch}, revision {known.revision} was stored before",
            hint="`mandor recover` shows what can be brought back; --accept-older-store goes on with what is there",
        )
