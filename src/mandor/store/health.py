"""Periodic check for problems of a store that still answers."""

import logging
from collections.abc import Iterator, Sequence

from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.lib.metrics import Family, gauge
from mandor.store.base import Store

log = logging.getLogger(__name__)

EVERY_SECONDS = 30.0  # between two checks


class StoreHealth:
    """Result of the last check; `run` repeats the check and logs what is new."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.problems: Sequence[str] = ()

    async def run(self) -> None:
        while True:
            await self.check()
            await self._clock.sleep(EVERY_SECONDS)

    async def check(self) -> None:
        try:
            found = await self._store.problems()
        except (MandorError, OSError) as error:
            found = (f"cannot check the store: {error}",)
        for each in found:
            if each not in self.problems:
                log.warning("%s", each)
        if self.problems and not found:
            log.info("the store has no more problems")
        self.problems = found

    def families(self) -> Iterator[Family]:
        help_text = "Problems of the store, which still answers; /readyz and `mandor doctor` list them."
        yield gauge("mandor_store_ailments", help_text, len(self.problems))
