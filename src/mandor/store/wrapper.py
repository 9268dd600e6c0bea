"""StoreWrapper: base class of stores that add something to another store."""

from collections.abc import AsyncIterator, Sequence

from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, Listing, Store, Write


class StoreWrapper(Store):
    """Forwards every call. Closing it leaves the inner store open. It has no lease channel, which would bypass it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, key: Key) -> Object | None:
        return await self._store.get(key)

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        return await self._store.get_all(keys)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        return await self._store.list(kind, where)

    async def commit(self, *writes: Write) -> int:
        return await self._store.commit(*writes)

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return self._store.watch(kind, since=since, where=where)

    async def problems(self) -> Sequence[str]:
        return await self._store.problems()

    async def check_available(self) -> None:
        await self._store.check_available()
