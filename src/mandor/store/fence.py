"""FencedStore: whoever is not the leader any more can read, but not write."""

from collections.abc import Callable

from mandor.errors import Conflict
from mandor.store.base import Check, Store, Write
from mandor.store.passing import PassingStore


class FencedStore(PassingStore):
    """Adds a check to every commit; `lost` is called when it fails."""

    def __init__(self, store: Store, check: Check, lost: Callable[[], None] | None = None) -> None:
        super().__init__(store)
        self._check = check
        self._lost = lost

    async def commit(self, *writes: Write) -> int:
        # A commit with nothing in it stays what it is: a mistake the store reports.
        fenced = (self._check, *writes) if writes else ()
        try:
            return await self._store.commit(*fenced)
        except Conflict as error:
            if error.facts.get("key") == self._check.key and self._lost is not None:
                self._lost()
            raise
