"""The store of one's own cluster: nothing is written while another one answers in its place."""

from collections.abc import AsyncIterator, Callable, Sequence

from mandor.errors import Unavailable
from mandor.model.meta import Key, Object
from mandor.store.base import ALL, Change, Filter, Listing, Store, Write


class OwnStore(Store):
    def __init__(self, store: Store, foreign: Callable[[], bool]) -> None:
        self._store, self._foreign = store, foreign

    async def get(self, key: Key) -> Object | None:
        return await self._store.get(key)

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        return await self._store.get_all(keys)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        return await self._store.list(kind, where)

    async def commit(self, *writes: Write) -> int:
        if self._foreign():
            raise Unavailable("another cluster answers in place of this node's own")
        return await self._store.commit(*writes)

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return self._store.watch(kind, since=since, where=where)
