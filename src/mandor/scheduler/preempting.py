"""Carries a preemption out: who has to go is told to stop, and it is written down for whom, all of it or nothing."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from mandor.errors import Conflict, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.store.base import Check, Put, Store, Write
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

PREEMPTED = "Preempted"
COMMITS_MOST = 16
TRIES = 5
"""Agents report about those who have to go meanwhile: it is read again and tried again so often."""
AFTER_OUTAGE = Backoff(first_seconds=0.2, most_seconds=5.0, jitter=0.2)


@dataclass(frozen=True, slots=True)
class Preemption:
    instance: Instance
    """For whom."""
    node: str
    node_version: int
    victims: tuple[Instance, ...]
    reason: str
    message: str


class Stale(Exception):
    """Something is not what it was when it was decided."""


class Preempting:
    def __init__(self, store: Store, clock: Clock, recorder: Recorder, *, failed: Callable[[Preemption], None]) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._failed = failed
        self._room = asyncio.Semaphore(COMMITS_MOST)

    async def carry_out(self, order: Preemption) -> None:
        async with self._room:
            try:
                victims = await self._write(order)
            except Stale as stale:
                log.info("%s preempts nobody on %s: %s", order.instance.key, order.node, stale)
                self._failed(order)
                return
        self._tell(order, victims)

    async def _write(self, order: Preemption) -> Sequence[Instance]:
        """Those who were told to stop; the others were going already."""
        instance, victims = order.instance, order.victims
        failures = 0
        for _ in range(TRIES):
            left = _still_there(order, victims)
            try:
                await self._store.commit(*self._writes(order, instance, left))
            except Conflict as error:
                self._check_ours(order, error)
            except Unavailable as error:
                # Perhaps it is written, perhaps not: what is stored tells.
                failures += 1
                log.warning("a preemption on %s waits: %s", order.node, error)
                await self._clock.sleep(AFTER_OUTAGE.pause(failures))
            else:
                return left
            instance, victims = await self._read_again(order)
            if instance.status.nominated == order.node and not _still_there(order, victims):
                return order.victims  # It was written by a commit whose answer never came.
        raise Stale("it changes all the time")

    def _writes(self, order: Preemption, instance: Instance, victims: Sequence[Instance]) -> list[Write]:
        now = self._clock.now()
        status = msgspec.structs.replace(
            instance.status, reason=order.reason, message=order.message, nominated=order.node
        )
        return [
            Check(Key(Node.kind, "", order.node), order.node_version),
            Put(instance.changed(status=status)),
            *(Put(each.stopping(PREEMPTED, at=now)) for each in victims),
        ]

    def _check_ours(self, order: Preemption, conflict: Conflict) -> None:
        key = conflict.facts.get("key")
        if key == Key(Node.kind, "", order.node):
            raise Stale("the node has changed")
        if key not in {order.instance.key, *(each.key for each in order.victims)}:
            raise conflict  # The fence: somebody else leads now.

    async def _read_again(self, order: Preemption) -> tuple[Instance, tuple[Instance, ...]]:
        instance = await self._store.get(order.instance.key)
        if not isinstance(instance, Instance) or instance.meta.uid != order.instance.meta.uid or not _waits(instance):
            raise Stale("nobody waits for it any more")
        found = [await self._store.get(each.key) for each in order.victims]
        uids = {each.meta.uid for each in order.victims}
        return instance, tuple(each for each in found if isinstance(each, Instance) and each.meta.uid in uids)

    def _tell(self, order: Preemption, victims: Sequence[Instance]) -> None:
        names = ", ".join(each.meta.name for each in victims)
        mine = order.instance
        self._recorder.note(mine, "Preempts", f"takes the place of {names} on {order.node}", node=order.node)
        for each in victims:
            text = f"makes room on {order.node} for {mine.meta.namespace}/{mine.meta.name}, which has a higher priority"
            self._recorder.note(each, PREEMPTED, text, type="warning", node=order.node)


def _still_there(order: Preemption, victims: Sequence[Instance]) -> list[Instance]:
    """Those who are where they were and do not know yet."""
    return [each for each in victims if each.node == order.node and each.spec.stop is None and not each.phase.over]


def _waits(instance: Instance) -> bool:
    return instance.phase is Phase.PENDING and not instance.spec.node and instance.spec.stop is None
