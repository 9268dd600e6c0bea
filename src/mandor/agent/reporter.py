"""Brings statuses to the control plane: the newest of each instance, for as long as it takes."""

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

TOGETHER_MOST = 50
"""So many instances are told of in one commit. While one is on its way, which is one at a time as a rule, the next ones
gather: the more the servers have to do, the fewer commits the same reports are."""
SOON_SECONDS = 0.2
"""That it starts is worth a report of its own only if it does not run by then."""
TRIES_MOST = 5
"""Conflicts in a row before an instance waits its turn again."""
LATE_SECONDS = 12.0
"""A commit that takes longer (a server that is busy placing lets one wait for ten) holds up no others: the next one
goes out beside it."""
WORKERS_MOST = 3
"""So many are on their way at once then."""
AGAIN_SECONDS = 1.0
"""What somebody else wrote over is said again no sooner than that."""


class Reporter:
    """Level-triggered: it compares what should be stored with what is, and what changed meanwhile is skipped."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        *,
        reporting: Callable[[Iterable[str]], AbstractContextManager[object]] = lambda uids: nullcontext(),
        reported: Callable[[str, InstanceStatus], None] = lambda uid, status: None,
        at_once: Callable[[], bool] = lambda: True,
    ) -> None:
        """`reporting`: what is sent within it is about these. `reported`: told what is stored. `at_once`: whether the
        servers take it that an instance runs which was never said to start."""
        self._store = store
        self._reporting, self._reported, self._at_once = reporting, reported, at_once
        self._stored: dict[str, Instance] = {}
        self._wanted: dict[str, InstanceStatus] = {}
        self._queue: KeyedQueue[str] = KeyedQueue(clock)
        self._clock = clock
        self._workers, self._late = 1, 0
        """Those who send, and those of them whose commit takes long."""

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
        if not self._differs(uid):
            return
        if self._just_begins(uid) and self._at_once():
            self._queue.add_after(uid, SOON_SECONDS)
        else:
            self._queue.add(uid)

    def _just_begins(self, uid: str) -> bool:
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
                self._queue.add(first)  # for one of the others
                self._workers -= 1
                return
            uids = [first, *self._queue.more(TOGETHER_MOST - 1)]
            try:
                with self._patience():
                    await self._send_all(uids)
            finally:
                for uid in uids:
                    self._queue.done(uid)

    @contextmanager
    def _patience(self) -> Iterator[None]:
        """What is in it is not waited for without end: there is another worker meanwhile."""
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
            # Because of one of them, or of all: one that goes through by itself tells.
            away = await self._send_alone(uids[0])
            uids = uids[1:]
        for uid in uids:
            if away is not None:
                self._put_off(uid, away)
            else:
                await self._send_alone(uid)

    async def _send_together(self, uids: Sequence[str]) -> Unavailable | None:
        """The next step of each in one commit, while there is more than one to tell of. If it is refused, nobody knows
        because of which: each is then sent alone. Not None: there may be nobody to send to."""
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
        """Not None: there is nobody to send to, or nobody takes it."""
        try:
            await self._send(uid)
            self._queue.failures.pop(uid, None)
        except MandorError as error:
            self._put_off(uid, error)
            return error if isinstance(error, Unavailable) else None
        return None

    def _put_off(self, uid: str, error: MandorError) -> None:
        failures = self._queue.failures[uid] = self._queue.failures.get(uid, 0) + 1
        if not isinstance(error, Unavailable):
            log.warning("the status of %s was not taken: %s", uid, error, extra={"facts": error.facts})
        self._queue.add_after(uid, Backoff(0.5, 30, jitter=0.3).pause(failures))

    def _step(self, uid: str) -> tuple[Instance, InstanceStatus] | None:
        """What is stored, and what is to be next; None: nothing, or nothing that may be."""
        if not self._differs(uid):
            return None
        stored, wanted = self._stored[uid], self._wanted[uid]
        steps = path(stored.phase, wanted.phase, at_once=self._at_once())
        return (stored, _on_the_way(wanted, steps[0])) if steps else None

    async def _send(self, uid: str) -> None:
        for _ in range(TRIES_MOST):
            if not self._differs(uid):
                return
            step = self._step(uid)
            if step is None:
                stored = self._stored[uid]
                log.debug("%s is %s in the store for good", stored.meta.name, stored.phase)
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
        # A server whose view is behind does not know it yet. The watch reports an instance that is gone (`drop`); until
        # then the status is sent again.
        raise NotFound(f"{stored.meta.name} does not exist, as far as this server knows", uid=stored.meta.uid)


def _on_the_way(wanted: InstanceStatus, phase: Phase) -> InstanceStatus:
    if phase is wanted.phase:
        return wanted
    return msgspec.structs.replace(wanted, phase=phase, ready=False)
