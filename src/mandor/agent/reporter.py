"""Brings statuses to the control plane: the newest of each instance, for as long as it takes."""

import logging

import msgspec

from mandor.agent.status import path
from mandor.errors import Conflict, MandorError, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.keyed_queue import KeyedQueue
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.phase import Phase
from mandor.store.base import Put, Store

log = logging.getLogger(__name__)

SENDERS = 4
TRIES_MOST = 5
"""Conflicts in a row before an instance waits its turn again."""
AGAIN_SECONDS = 1.0
"""What somebody else wrote over is said again no sooner than that."""


class Reporter:
    """Level-triggered: it compares what should be stored with what is, and what changed meanwhile is skipped."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._stored: dict[str, Instance] = {}
        self._wanted: dict[str, InstanceStatus] = {}
        self._queue: KeyedQueue[str] = KeyedQueue(clock)

    @property
    def waiting(self) -> int:
        """Reports that have not arrived."""
        return sum(1 for uid in self._wanted if self._differs(uid))

    def saw(self, instance: Instance, *, listed: bool = False) -> None:
        """This is what the store holds now; a list also tells when a restored store counts lower than before."""
        uid = instance.meta.uid
        known = self._stored.get(uid)
        if listed or known is None or instance.meta.version >= known.meta.version:
            self._stored[uid] = instance
            if self._differs(uid):
                self._queue.add_after(uid, 0.0 if listed or known is None else AGAIN_SECONDS)

    def report(self, uid: str, status: InstanceStatus) -> None:
        if self._wanted.get(uid) == status:
            return
        self._wanted[uid] = status
        if self._differs(uid):
            self._queue.add(uid)

    def drop(self, uid: str) -> None:
        self._wanted.pop(uid, None)
        self._stored.pop(uid, None)

    async def run(self) -> None:
        async with Background() as tasks:
            for number in range(SENDERS):
                tasks.start(self._send_on(), name=f"reporter {number}")
            await tasks.wait()

    def _differs(self, uid: str) -> bool:
        stored, wanted = self._stored.get(uid), self._wanted.get(uid)
        return stored is not None and wanted is not None and stored.status != wanted

    async def _send_on(self) -> None:
        while True:
            uid = await self._queue.get()
            try:
                await self._send(uid)
                self._queue.failures.pop(uid, None)
            except MandorError as error:
                failures = self._queue.failures[uid] = self._queue.failures.get(uid, 0) + 1
                if not isinstance(error, Unavailable):
                    log.warning("the status of %s was not taken: %s", uid, error, extra={"facts": error.facts})
                self._queue.add_after(uid, Backoff(0.5, 30, jitter=0.3).pause(failures))
            finally:
                self._queue.done(uid)

    async def _send(self, uid: str) -> None:
        for _ in range(TRIES_MOST):
            if not self._differs(uid):
                return
            stored, wanted = self._stored[uid], self._wanted[uid]
            steps = path(stored.phase, wanted.phase)
            if not steps:
                log.debug("%s is %s in the store for good", stored.meta.name, stored.phase)
                self._wanted.pop(uid, None)
                return
            try:
                await self._write(stored, _on_the_way(wanted, steps[0]))
            except Conflict:
                await self._read_again(stored)
        if self._differs(uid):
            self._queue.add_after(uid, AGAIN_SECONDS)

    async def _write(self, stored: Instance, status: InstanceStatus) -> None:
        value = stored.reported(status)
        revision = await self._store.commit(Put(value))
        uid = stored.meta.uid
        now = self._stored.get(uid)
        if now is not None and now.meta.version < revision:
            self._stored[uid] = value.stamped(version=revision)

    async def _read_again(self, stored: Instance) -> None:
        found = await self._store.get(stored.key)
        if isinstance(found, Instance) and found.meta.uid == stored.meta.uid:
            self._stored[stored.meta.uid] = found
            return
        # Whether it is gone for good is for the watch to say; until then there is nobody to report to.
        self._stored.pop(stored.meta.uid, None)


def _on_the_way(wanted: InstanceStatus, phase: Phase) -> InstanceStatus:
    if phase is wanted.phase:
        return wanted
    return msgspec.structs.replace(wanted, phase=phase, ready=False)
