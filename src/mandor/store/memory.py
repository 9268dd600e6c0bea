"""MemoryStore: keeps everything in memory; for tests, the simulator and temporary clusters."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from mandor.errors import Unavailable
from mandor.lib.clock import Clock, SystemClock
from mandor.lib.ids import NewId, ordered_uid
from mandor.model.meta import Key, Object
from mandor.store.access import ANONYMOUS, StoreAccess
from mandor.store.base import ALL, Change, Filter, Listing, Store, Write, check_writes
from mandor.store.draft import draft
from mandor.store.feed import BOOKMARK_SECONDS, Watch, list_index
from mandor.store.index import BUFFER_MOST, HISTORY_MOST, Index


class MemoryStore(Store):
    """All state is lost when the process ends."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        new_uid: NewId = ordered_uid,
        history_most: int = HISTORY_MOST,
        buffer_most: int = BUFFER_MOST,
        bookmark_seconds: float = BOOKMARK_SECONDS,
    ) -> None:
        self.index = Index(history_most=history_most, buffer_most=buffer_most)
        self._clock = clock or SystemClock()
        self._new_uid = new_uid
        self._bookmark_seconds = bookmark_seconds

    async def get(self, key: Key) -> Object | None:
        return self.index.get(key)

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        return [self.index.get(key) for key in keys]

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        return await list_index(self.index, kind, where)

    async def commit(self, *writes: Write) -> int:
        keys = check_writes(writes)
        # Every other home lets others run here; what only works without that is a bug better found early.
        await asyncio.sleep(0)
        changes = draft(
            writes,
            keys,
            self.index.objects,
            revision=self.index.revision + 1,
            now=self._clock.now(),
            new_uid=self._new_uid,
        )
        self.index.publish(changes)
        return self.index.revision

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return Watch(self.index, kind, since, where, bookmark_seconds=self._bookmark_seconds)

    async def skip_to(self, revision: int) -> None:
        """Later revisions are greater than this one."""
        if revision > self.index.revision:
            self.index.start_at(revision)

    async def close(self) -> None:
        self.index.fail_watchers(Unavailable("the store is closed"))


async def open_memory(address: str = "", access: StoreAccess = ANONYMOUS) -> MemoryStore:
    """For `memory:`; what it holds ends with the process."""
    return MemoryStore()
