"""Writes the newest status of each instance to the store, and retries until it is stored."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import msgspec

from mandor.agent.status import path
from mandor.errors import Conflict, MandorError, NotFound, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock
from mandor.lib.keyed_queue import KeyedQueue
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.phase import Phase
from mandor.store.base import Put, Store

log = logging.getLogger(__name__)

BATCH_MOST = 50
"""Largest number of statuses in one commit. Usually one commit is under way at a time, and further statuses collect
meanwhile: the busier the servers, the fewer commits."""
SOON_SECONDS = 0.2
"""Seconds that the phase Starting is held back: usually the instance runs by then."""
TRIES_MOST = 5
"""Largest number of conflicts in a row before the status is queued again."""
LATE_SECONDS = 12.0
"""Seconds after which a commit is late and another one is started beside it; a busy server takes up to ten."""
WORKERS_MOST = 3
"""Largest number of concurrent commits."""
AGAIN_SECONDS = 1.0
"""Seconds before a status that another writer replaced is written again."""


class Reporter:
    """Level-triggered: compares the wanted status with the stored one; intermediate statuses are skipped."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        reporting: Callable[[Iterable[str]], AbstractContextManager[object]] = lambda uids: nullcontext(),
        reported: Callable[[str, InstanceStatus], None] = lambda uid, status: None,
        at_once: Callable[[], bool] = lambda: True,
    ) -> None:
        """`reporting`: context of a request about these instances. `reported`: called with each stored status.
        `at_once`: whether the servers accept Running after Reserved, without Starting in between."""
        self._store = store
        self._reporting, self._reported, self._at_once = reporting, reported, at_once
        self._stored: dict[str, Instance] = {}
        self._wanted: dict[str, InstanceStatus] = {}
        self._queue: KeyedQueue[str] = KeyedQueue(clock)
        self._clock = clock
        self._workers, self._late = 1, 0
        """Number of workers, and of those whose commit is late."""

    @property
    def waiting(self) -> int:
        """Number of statuses that are not stored yet."""
        return sum(1 for uid in self._wanted if self._differs(uid))

    def saw(self, instance: Instance, *, listed: bool = False) -> None:
        """Take the stored instance. `listed`: also take a lower version, as after a restore of the store."""
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
        if not self._differs(uid):
            return
        if self._is_starting(uid) and self._at_once():
            self._queue.add_after(uid, SOON_SECONDS)
        else:
            self._queue.add(uid)

    def _is_starting(self, uid: str) -> bool:
        wanted = self._wanted[uid]
        return self._stored[uid].phase is Phase.RESERVED and wanted.phase is Phase.STARTING and not wanted.reason

    def drop(self, uid: str) -> None:
        self._wanted.pop(uid, None)
        self._stored.pop(uid, None)

    def _differs(self, uid: str) -> bool:
        stored, wanted = self._stored.get(uid), self._wanted.get(uid)
        return stored is not None and wanted is not None and stored.status != wanted

    async def run(self) -> None:
        async with Background() as self._tasks:
            await self._work()

    async def _work(self, *, helps: bool = False) -> None:
        while True:
            first = await self._queue.get()
            if helps and self._workers > 1 + self._late:
                self._queue.done(first)
                self._queue.add(first)  # for another worker
                self._workers -= 1
                return
            uids = [first, *self._queue.more(BATCH_MOST - 1)]
            try:
                with self._late_guard():
                    await self._send_all(uids)
            finally:
                for uid in uids:
                    self._queue.done(uid)

    @contextmanager
    def _late_guard(self) -> Iterator[None]:
        """Start another worker if the block takes longer than `LATE_SECONDS`."""
        late = False

        def ring() -> None:
            nonlocal late
            late = True
            self._late += 1
            if self._workers < WORKERS_MOST:
                self._workers += 1
                self._tasks.start(self._work(helps=True), "more reports")

        alarm = self._clock.alarm(LATE_SECONDS, ring)
        try:
            yield
        finally:
            alarm.cancel()
            self._late -= late

    async def _send_all(self, uids: Sequence[str]) -> None:
        away = await self._send_together(uids) if len(uids) > 1 else None
        if away is not None:
            # The error concerns one of them, or all: sending one alone shows which.
            away = await self._send_alone(uids[0])
            uids = uids[1:]
        for uid in uids:
            if away is not None:
                self._retry_later(uid, away)
            else:
                await self._send_alone(uid)

    async def _send_together(self, uids: Sequence[str]) -> Unavailable | None:
        """Commit the next step of each instance, while there is more than one. After a refusal the caller sends each
        alone, to find the refused one. Return an error if the servers may be unavailable."""
        for _ in range(TRIES_MOST):
            steps = {uid: step for uid in uids if (step := self._step(uid)) is not None}
            if len(steps) < 2:
                return None
            try:
                await self._write(steps)
            except Unavailable as error:
                return error
            except MandorError:
                return None
        return None

    async def _send_alone(self, uid: str) -> Unavailable | None:
        """Send one status; return an error if the servers are unavailable."""
        try:
            await self._send(uid)
            self._queue.failures.pop(uid, None)
        except MandorError as error:
            self._retry_later(uid, error)
            return error if isinstance(error, Unavailable) else None
        return None

    def _retry_later(self, uid: str, error: MandorError) -> None:
        failures = self._queue.failures[uid] = self._queue.failures.get(uid, 0) + 1
        if not isinstance(error, Unavailable):
            log.warning("cannot write the status of instance %s: %s", uid, error, extra={"facts": error.facts})
        self._queue.add_after(uid, Backoff(0.5, 30, jitter=0.3).pause(failures))

    def _step(self, uid: str) -> tuple[Instance, InstanceStatus] | None:
        """Return the stored instance and its next status; None: nothing to write, or no allowed transition."""
        if not self._differs(uid):
            return None
        stored, wanted = self._stored[uid], self._wanted[uid]
        steps = path(stored.phase, wanted.phase, at_once=self._at_once())
        return (stored, _intermediate(wanted, steps[0])) if steps else None

    async def _send(self, uid: str) -> None:
        for _ in range(TRIES_MOST):
            if not self._differs(uid):
                return
            step = self._step(uid)
            if step is None:
                stored = self._stored[uid]
                log.debug("instance %s stays %s in the store", stored.meta.name, stored.phase)
                self._wanted.pop(uid, None)
                return
            try:
                await self._write({uid: step})
            except Conflict:
                await self._read_again(step[0])
        if self._differs(uid):
            self._queue.add_after(uid, AGAIN_SECONDS)

    async def _write(self, steps: Mapping[str, tuple[Instance, InstanceStatus]]) -> None:
        values = {uid: stored.reported(status) for uid, (stored, status) in steps.items()}
        with self._reporting(values):
            revision = await self._store.commit(*map(Put, values.values()))
        for uid, value in values.items():
            self._reported(uid, value.status)
            now = self._stored.get(uid)
            if now is not None and now.meta.version < revision:
                self._stored[uid] = value.stamped(version=revision)

    async def _read_again(self, stored: Instance) -> None:
        found = await self._store.get(stored.key)
        if isinstance(found, Instance) and found.meta.uid == stored.meta.uid:
            self._stored[stored.meta.uid] = found
            return
        # A server with an outdated view does not have it yet. The watch reports a deleted instance (`drop`); until
        # then the status is sent again.
        raise NotFound(f"this server does not have instance {stored.meta.name}", uid=stored.meta.uid)


def _intermediate(wanted: InstanceStatus, phase: Phase) -> InstanceStatus:
    if phase is wanted.phase:
        return wanted
    return msgspec.structs.replace(wanted, phase=phase, ready=False)
