"""Writes why an instance waits, to its status and as an event, whenever the reason changes."""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from mandor.errors import Conflict, Unavailable
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.store.base import WRITES_MOST, Put, Store, Write
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

REFUSALS_MOST = 10_000
"""Reasons waiting to be written; more are dropped until the next try of their instance."""

Refusal = tuple[str, str, str]
"""Reason, message, and the node where room is held."""


class StatusWriter:
    def __init__(self, store: Store, recorder: Recorder, instances: Mirror) -> None:
        self._store = store
        self._recorder = recorder
        self._instances = instances
        self._refusals: dict[Key, Refusal] = {}
        self._refused = asyncio.Event()

    def refused(self, key: Key, uid: str, reason: str, message: str, nominated: str = "") -> None:
        """Queue a reason to be written, unless it is the current one."""
        instance = self._instances.get(key)
        if not isinstance(instance, Instance) or instance.meta.uid != uid:
            return
        status = instance.status
        known = self._refusals.get(key) or (status.reason, status.message, status.nominated)
        if known == (reason, message, nominated) or len(self._refusals) >= REFUSALS_MOST:
            return
        self._refusals[key] = (reason, message, nominated)
        self._refused.set()
        self._recorder.note(instance, reason, message, type="warning")

    async def run(self) -> None:
        while True:
            await self._refused.wait()
            self._refused.clear()
            while self._refusals:
                keys = list(self._refusals)[:WRITES_MOST]
                await self._write_some({key: self._refusals.pop(key) for key in keys})

    async def _write_some(self, refusals: Mapping[Key, Refusal]) -> None:
        writes: list[Write] = []
        for key, (reason, message, nominated) in refusals.items():
            instance = self._instances.get(key)
            if isinstance(instance, Instance) and instance.phase is Phase.PENDING and not instance.spec.node:
                status = msgspec.structs.replace(instance.status, reason=reason, message=message, nominated=nominated)
                writes.append(Put(instance.changed(status=status)))
        while writes:
            try:
                # The next reason is compared with this one, so the mirror has to show it.
                await self._instances.reached(await self._store.commit(*writes))
            except Conflict as error:
                # The instance has changed; if it still does not fit, its next try writes the reason.
                rest = [write for write in writes if write.key != error.facts.get("key")]
                if len(rest) == len(writes):
                    raise
                writes = rest
            except Unavailable as error:
                log.warning("the reasons of %d pending instances are not written: %s", len(writes), error)
                return
            else:
                return
