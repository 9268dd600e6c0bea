"""FencedStore: whoever is not the leader any more can read, but not write."""

from collections.abc import AsyncIterator, Callable, Sequence

from mandor.errors import Conflict
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Check, Filter, Listing, Store, Write


class FencedStore(Store):
    """Adds a check to every commit; `lost` is called when it fails. Closing it leaves the store open."""

    def __init__(self, store: Store, check: Check, lost: Callable[[], None] | None = None) -> None:
        self._store = store
        self._check = check
        self._lost = lost

    async def get(self, key: Key) -> Object | None:
        return await self._store.get(key)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        return await self._store.list(kind, where)

    async def commit(self, *writes: Write) -> int:
        # A commit with nothing in it stays what it is: a mistake the store reports.
        fenced = (self._check, *writes) if writes else ()
        try:
            return await self._store.commit(*fenced)
        except Conflict as error:
            if error.facts.get("key") == self._check.key and self._lost is not None:
                self._lost()
            raise

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return self._store.watch(kind, since=since, where=where)
