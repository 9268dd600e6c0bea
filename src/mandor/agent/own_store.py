"""The store of one's own cluster: nothing is written while another one answers in its place."""

from collections.abc import Callable

from mandor.errors import Unavailable
from mandor.store.base import Store, Write
from mandor.store.passing import PassingStore


class OwnStore(PassingStore):
    def __init__(self, store: Store, foreign: Callable[[], bool]) -> None:
        super().__init__(store)
        self._foreign = foreign

    async def commit(self, *writes: Write) -> int:
        if self._foreign():
            raise Unavailable("another cluster answers in place of this node's own")
        return await self._store.commit(*writes)
