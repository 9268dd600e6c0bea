"""Says why an instance waits: in its status and in an event, and only when that changes."""

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
"""So many instances may wait to have their reason written down; the others are told at their next try."""

Refusal = tuple[str, str, str]
"""Reason, message, and the node where there will be room."""


class StatusWriter:
    def __init__(self, store: Store, recorder: Recorder, instances: Mirror) -> None:
        self._store = store
        self._recorder = recorder
        self._instances = instances
        self._refusals: dict[Key, Refusal] = {}
        self._refused = asyncio.Event()

    def tell(self, key: Key, uid: str, reason: str, message: str, nominated: str = "") -> None:
        instance = self._instances.get(key)
        if not isinstance(instance, Instance) or instance.meta.uid != uid:
            return
        status = instance.status
        told = self._refusals.get(key) or (status.reason, status.message, status.nominated)
        if told == (reason, message, nominated) or len(self._refusals) >= REFUSALS_MOST:
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
                # What is said next about one of them begins with what was said now.
                await self._instances.reached(await self._store.commit(*writes))
            except Conflict as error:
                # It has moved on; if it still does not fit, that is said again.
                rest = [write for write in writes if write.key != error.facts.get("key")]
                if len(rest) == len(writes):
                    raise
                writes = rest
            except Unavailable as error:
                log.warning("%d reasons are not written: %s", len(writes), error)
                return
            else:
                return
