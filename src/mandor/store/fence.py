"""FencedStore: rejects the commits of a process that is no longer the leader."""

from collections.abc import Callable

from mandor.errors import Conflict
from mandor.store.base import Check, Store, Write
from mandor.store.wrapper import StoreWrapper


class FencedStore(StoreWrapper):
    """Adds a check of the leader's term to every commit; `lost` is called when that check fails."""

    def __init__(self, store: Store, check: Check, lost: Callable[[], None] | None = None) -> None:
        super().__init__(store)
        self._check = check
        self._lost = lost

    async def commit(self, *writes: Write) -> int:
        # An empty commit is passed on, so that the store reports it as invalid.
        fenced = (self._check, *writes) if writes else ()
        try:
            return await self._store.commit(*fenced)
        except Conflict as error:
            if error.facts.get("key") == self._check.key and self._lost is not None:
                self._lost()
            raise
