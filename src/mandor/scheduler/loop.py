"""The scheduler: takes the next instance, decides, counts it at once, and has it written in the background."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import msgspec

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.placement.cycle import Decision, decide
from mandor.placement.framework.points import ANYTHING
from mandor.placement.framework.profile import Profile
from mandor.placement.profiles import default_profile
from mandor.scheduler.binding import Binder, chunks
from mandor.scheduler.queue import Entry, SchedulingQueue
from mandor.scheduler.view import Promise, View
from mandor.store.base import WRITES_MOST, Put, Store, Write
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

SLICE_MICROSECONDS = 10_000
"""About so long decisions are made in a row, then others get their turn. It is counted in decisions and not
measured, so that the same input always gives the same course of events."""
GATHERED = 256
"""So many decisions are written together, or fewer when nobody waits."""
NOTED_MOST = 64
"""Of a slice with more binds than this, only the remarkable ones are told as events."""
REFUSALS_MOST = 10_000
"""So many instances may wait to have their reason written down; the others are told at their next try."""


class Scheduler:
    """Cycles run strictly one after another; binds run beside them. It keeps nothing: all it knows is in the
    store, and what it had promised and not written when it died was never promised."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        *,
        profiles: Mapping[str, Profile] | None = None,
        seed: str = "",
    ) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._profiles = profiles or {"default": default_profile()}
        self._mirrors = {each.kind: Mirror(store, each.kind) for each in (Node, Release, Workload, Instance)}
        self._instances = self._mirrors[Instance.kind]
        queue = SchedulingQueue(self._profiles["default"].queue_sort)
        self.view = View(queue, self._instances, self._mirrors[Workload.kind], seed=seed)
        self._queue = queue
        self._binder = Binder(store, clock, bound=self._bound, failed=self._failed)
        self._refusals: dict[Key, tuple[str, str]] = {}
        self._refused = asyncio.Event()
        self._known_refusals: dict[tuple[object, ...], Decision] = {}
        self._known_at = -1
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """For ever; ends with the error when the leadership is lost."""
        for mirror in self._mirrors.values():
            mirror.listen(self.view.apply)
            mirror.listen(lambda _: self._wake.set())
        async with AsyncExitStack() as stack:
            for mirror in self._mirrors.values():
                await stack.enter_async_context(mirror)
            for mirror in self._mirrors.values():
                await mirror.synced()
            await self._size_all()
            async with Background() as tasks:
                tasks.start(self._write_refusals(), "refusals")
                await self._schedule(tasks)

    async def _size_all(self) -> None:
        """Nothing is decided before it is known how much everything that is placed takes."""
        for key in self.view.missing():
            found = await self._store.get(key)
            if found is None:
                self.view.without(key)
            else:
                await self._mirrors[key.kind].reached(found.meta.version)

    async def _schedule(self, tasks: Background) -> None:
        promises: list[Promise] = []
        while True:
            self._wake.clear()
            self._queue.happened(self.view.happened, now=self._clock.monotonic())
            self.view.happened.clear()
            self._queue.flush(now=self._clock.monotonic())
            tried = self._decide_some(promises)
            if len(promises) >= GATHERED or not tried:
                await self._bind(tasks, promises)
                promises = []
            if tried:
                await asyncio.sleep(0)
            else:
                await self._idle()

    async def _bind(self, tasks: Background, promises: Sequence[Promise]) -> None:
        for chunk in chunks(promises):
            await self._binder.room.acquire()
            writing = tasks.start(self._binder.write(chunk), "bind")
            writing.add_done_callback(lambda _: self._binder.room.release())

    async def _idle(self) -> None:
        """Until something changes, or somebody's pause is over."""
        at = self._queue.next_at()
        waits: set[asyncio.Future[Any]] = {asyncio.ensure_future(self._wake.wait())}
        if at is not None:
            pause = max(0.0, at - self._clock.monotonic())
            waits.add(asyncio.ensure_future(self._clock.sleep(pause)))
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    # Deciding: nothing here waits.

    def _decide_some(self, promises: list[Promise]) -> int:
        """How many were decided; those that found a node are added to `promises`."""
        most = max(16, SLICE_MICROSECONDS // (60 + len(self.view.table) // 25))
        for tried in range(most):
            entry = self._queue.pop()
            if entry is None:
                return tried
            made = self._cycle(entry)
            if made is not None:
                promises.append(made)
        return most

    def _cycle(self, entry: Entry) -> Promise | None:
        decision = self._decide(entry)
        if decision.node:
            return self.view.promise(entry, decision.node, decision.relaxed)
        now = self._clock.monotonic()
        if decision.fault:
            self._queue.back_off(entry, now=now)
            self._refuse(entry, "PluginFault", decision.message)
        else:
            self._queue.put_back(entry, now=now, retry_on=decision.retry_on)
            self._refuse(entry, "Unschedulable", decision.message)
        return None

    def _decide(self, entry: Entry) -> Decision:
        ask, table = entry.ask, self.view.table
        profile = self._profiles.get(ask.profile)
        if profile is None:
            return Decision(ask.key, message=f"there is no profile {ask.profile}", retry_on=ANYTHING)
        # What did not fit does not fit for its like either, as long as nothing changes.
        if self._known_at != table.version:
            self._known_refusals.clear()
            self._known_at = table.version
        like = (ask.shape, ask.priority, ask.profile, ask.avoid)
        known = self._known_refusals.get(like)
        if known is not None:
            return replace(known, key=ask.key)
        decision = decide(profile, ask, table.snapshot())
        if not decision.node and not decision.fault:
            self._known_refusals[like] = decision
        return decision

    # After the bind.

    def _bound(self, promise: Promise) -> None:
        if promise.relaxed or self.view.promises <= NOTED_MOST:
            without = "".join(f", without `{rule}`" for rule in promise.relaxed)
            self._recorder.note(promise.instance, "Scheduled", f"placed on {promise.node}{without}", node=promise.node)

    def _failed(self, promise: Promise) -> None:
        """Somebody changed it or its node meanwhile: decide again."""
        if self.view.take_back(promise):
            if promise.entry.attempts:
                self._queue.back_off(promise.entry, now=self._clock.monotonic())
            else:
                self._queue.retry(promise.entry)
            self._wake.set()

    # Saying why.

    def _refuse(self, entry: Entry, reason: str, message: str) -> None:
        instance = self._instances.get(entry.ask.key)
        if not isinstance(instance, Instance) or instance.meta.uid != entry.uid:
            return
        status = instance.status
        if (status.reason, status.message) == (reason, message) or len(self._refusals) >= REFUSALS_MOST:
            return
        self._refusals[entry.ask.key] = (reason, message)
        self._refused.set()
        self._recorder.note(instance, reason, message, type="warning")

    async def _write_refusals(self) -> None:
        while True:
            await self._refused.wait()
            self._refused.clear()
            while self._refusals:
                keys = list(self._refusals)[:WRITES_MOST]
                await self._write_some({key: self._refusals.pop(key) for key in keys})

    async def _write_some(self, refusals: Mapping[Key, tuple[str, str]]) -> None:
        writes: list[Write] = []
        for key, (reason, message) in refusals.items():
            instance = self._instances.get(key)
            if isinstance(instance, Instance) and instance.phase is Phase.PENDING and not instance.spec.node:
                status = msgspec.structs.replace(instance.status, reason=reason, message=message)
                writes.append(Put(instance.changed(status=status)))
        while writes:
            try:
                await self._store.commit(*writes)
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
