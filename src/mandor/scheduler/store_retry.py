"""Reads from the store that are retried while the store is unavailable."""

import logging

from mandor.errors import Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.meta import Key, Object
from mandor.store.base import Store

log = logging.getLogger(__name__)

AFTER_OUTAGE = Backoff(first_seconds=0.2, most_seconds=5.0, jitter=0.2)
"""Pauses between the tries."""


async def stored_now(store: Store, clock: Clock, key: Key) -> Object | None:
    """Return the stored object, retrying until the store is available."""
    failures = 0
    while True:
        try:
            return await store.get(key)
        except Unavailable as error:
            failures += 1
            log.warning("the store is unavailable, reading %s %s is retried: %s", key.kind, key.name, error)
            await clock.sleep(AFTER_OUTAGE.pause(failures))
