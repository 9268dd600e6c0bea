"""Reading what decides how to go on: an outage of the store is waited out, and ends nothing."""

import logging

from mandor.errors import Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.meta import Key, Object
from mandor.store.base import Store

log = logging.getLogger(__name__)

AFTER_OUTAGE = Backoff(first_seconds=0.2, most_seconds=5.0, jitter=0.2)


async def stored_now(store: Store, clock: Clock, key: Key) -> Object | None:
    """As it is now, however long it takes to find out."""
    failures = 0
    while True:
        try:
            return await store.get(key)
        except Unavailable as error:
            failures += 1
            log.warning("what %s %s is now is not known: %s", key.kind, key.name, error)
            await clock.sleep(AFTER_OUTAGE.pause(failures))
