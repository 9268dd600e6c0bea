"""Health: looks now and then whether a store that answers is well, and tells when that changes."""

import logging
from collections.abc import Iterator, Sequence

from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.lib.metrics import Family, gauge
from mandor.store.base import Store

log = logging.getLogger(__name__)

EVERY_SECONDS = 30.0


class Health:
    """Use: run `run()`; `ailments` is what was found last."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.ailments: Sequence[str] = ()

    async def run(self) -> None:
        while True:
            await self.look()
            await self._clock.sleep(EVERY_SECONDS)

    async def look(self) -> None:
        try:
            found = await self._store.ailments()
        except (MandorError, OSError) as error:
            found = (f"the store cannot be examined: {error}",)
        for each in found:
            if each not in self.ailments:
                log.warning("%s", each)
        if self.ailments and not found:
            log.info("the store is well again")
        self.ailments = found

    def families(self) -> Iterator[Family]:
        told = "What is wrong with the store although it answers; /readyz and `mandor doctor` say what."
        yield gauge("mandor_store_ailments", told, len(self.ailments))
