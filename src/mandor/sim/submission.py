"""Stores the manifests of a scenario as the API of a server stores them: checked, completed and merged."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from mandor.api.apply import BATCH, FIRST, plan_apply
from mandor.api.caller import Caller
from mandor.api.heartbeat import Heartbeats
from mandor.api.parts import ApiParts
from mandor.api.writing import Author
from mandor.errors import Conflict, Invalid, MandorError
from mandor.lib.clock import Clock
from mandor.model.log_sink import LogSink
from mandor.model.manifest import Document
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.pool import NodePool
from mandor.model.receiver import EventBus, Webhook
from mandor.model.secret import Secret
from mandor.store.base import Put, Store

AUTHOR = Author(Caller("user:scenario", "admin"))
UNCHECKED = (Node, NodePool, Secret, Webhook, EventBus, LogSink)
"""Kinds that are stored without admission, which depends on keys, files and network policy of a real server."""


class Submission:
    """Writes objects to the store of a simulated cluster."""

    def __init__(
        self, store: Store, clock: Clock, heartbeats: Heartbeats, *, stored: bool, places: Mapping[Key, Document]
    ) -> None:
        """
        `stored`: a server has admitted and completed the objects before, so that they are stored as they are.
        `places`: file and line of objects, for errors.
        """
        self._store, self._stored, self._places = store, stored, places
        self._parts = ApiParts(store, clock, heartbeats)

    async def submit(self, objects: Sequence[Object]) -> None:
        """Create or change objects together; raise `Invalid` if a server would refuse one of them."""
        plain = [each for each in objects if self._stored or isinstance(each, UNCHECKED)]
        for each in plain:
            await self._store_as_given(each)
        checked = [each for each in objects if each not in plain]
        while checked:
            try:
                await self._apply(checked)
            except Conflict as error:
                if "version" not in error.facts:
                    raise
                continue
            return

    async def _store_as_given(self, value: Object) -> None:
        """Write the object as the next version of the stored one, whose status stays."""
        while True:
            found = await self._store.get(value.key)
            if found is not None:
                meta = msgspec.structs.replace(found.meta, labels=value.meta.labels)
                value = found.changed(meta=meta, spec=value.spec)
            try:
                await self._store.commit(Put(value))
            except Conflict:
                continue
            return

    async def _apply(self, objects: Sequence[Object]) -> None:
        try:
            plan = await plan_apply(self._parts, AUTHOR, [self._document(each) for each in objects])
        except MandorError as error:
            facts = {key: error.facts[key] for key in ("file", "line") if error.facts.get(key)}
            raise Invalid(f"a server would refuse the manifest: {error.message}", hint=error.hint, **facts) from error
        writes = sorted((each.write for each in plan.checked), key=lambda each: each.key.kind not in FIRST)
        for start in range(0, len(writes), BATCH):
            await self._store.commit(*writes[start : start + BATCH])

    def _document(self, value: Object) -> Document:
        """Return the object as a document; one without a known place names itself instead of a file."""
        found = self._places.get(value.key)
        return Document(value, str(value.key), 0) if found is None else replace(found, object=value)
