"""The measured cluster: a store, the leading scheduler, and a replacement for agents."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from mandor.bench.meter import Meter
from mandor.errors import Conflict
from mandor.lib.clock import Clock
from mandor.lib.garbage import collect_gently
from mandor.lib.tasks import Background
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.workload import Workload
from mandor.scheduler.attempt import AttemptState
from mandor.scheduler.loop import Scheduler
from mandor.scheduler.reload import Configured
from mandor.store.base import WRITES_MOST, Change, Delete, Put, Store, Write
from mandor.store.election import Election
from mandor.store.recorder import Recorder

COMMITS_MOST = 16
"""Maximum number of concurrent commits while objects are created."""
LEASE_SECONDS = 15.0
_UNTRIED = {None, AttemptState.ACTIVE, AttemptState.CONSULTING, AttemptState.OUT}


@dataclass(slots=True, eq=False)
class Batch:
    """Objects that one operation created, and how many of them are not bound yet."""

    labels: dict[str, str]
    keys: list[Key] = field(default_factory=list)
    left: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def matches(self, labels: dict[str, str]) -> bool:
        return all(self.labels.get(key) == value for key, value in labels.items())


class Cluster:
    """Use as `async with`. There are no agents: a stopped instance is gone at once."""

    def __init__(self, store: Store, clock: Clock, configured: Configured, meter: Meter) -> None:
        self.store = store
        self.meter = meter
        self._clock = clock
        self._configured = configured
        self._stack = AsyncExitStack()
        self._leads = asyncio.Event()
        self._open: dict[Key, Batch] = {}
        """Instances that wait for a node, with their batch."""
        self.batches: list[Batch] = []
        self._ended: list[Instance] = []
        self._kept: set[Key] = set()
        """Deleted workloads whose instances remain, because of finalizers."""
        self._end = asyncio.Event()
        self.scheduler: Scheduler | None = None

    async def __aenter__(self) -> Self:
        tasks = await self._stack.enter_async_context(Background())
        revision = (await self.store.list(Instance.kind)).revision
        tasks.start(self._watch(revision), "binds")
        tasks.start(self._reap(), "ends")
        tasks.start(collect_gently(self._clock), "garbage")
        election = Election(self.store, "scheduler", "bench", LEASE_SECONDS, self._clock)
        tasks.start(election.run(self._schedule), "scheduler")
        await self._leads.wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.__aexit__(kind, error, trace)

    async def _schedule(self, store: Store) -> None:
        recorder = Recorder(store, "scheduler", self._clock)
        async with Background() as tasks:
            tasks.start(recorder.run(), "recorder")
            pause = self._configured.pause()
            self.scheduler = Scheduler(store, self._clock, recorder, profiles=self._configured.profiles, pause=pause)
            self.scheduler.timed = self.meter.decision
            self._leads.set()
            await self.scheduler.run()

    # Writing.

    async def write(self, writes: Sequence[Write]) -> None:
        """Write all objects with concurrent commits, in no particular order."""
        room = asyncio.Semaphore(COMMITS_MOST)

        async def commit(chunk: Sequence[Write]) -> None:
            async with room:
                await self.store.commit(*chunk)

        chunks = [writes[start : start + WRITES_MOST] for start in range(0, len(writes), WRITES_MOST)]
        async with asyncio.TaskGroup() as tasks:
            for chunk in chunks:
                tasks.create_task(commit(chunk))

    def expect(self, instances: Iterable[Instance], workload: Workload, *, kept: bool = False) -> Batch:
        """Register objects that are about to be created."""
        batch = Batch(workload.meta.labels, [each.key for each in instances])
        batch.left = len(batch.keys)
        for key in batch.keys:
            self._open[key] = batch
        if not batch.keys:
            batch.done.set()
        if kept:
            self._kept.add(workload.key)
        self.meter.know(workload)
        self.batches.append(batch)
        return batch

    async def remove(self, keys: Iterable[Key], per_second: float) -> None:
        """Delete pods: each instance is stopped, and deleted when it has stopped."""
        for key in list(keys):
            while not await self._stopped(key):
                pass  # The instance has changed meanwhile.
            if per_second:
                await self._clock.sleep(1 / per_second)

    async def _stopped(self, key: Key) -> bool:
        """Order an instance to stop; return False if it has changed meanwhile."""
        found = await self.store.get(key)
        if isinstance(found, Instance) and found.spec.stop is None:
            try:
                await self.store.commit(Put(found.stopping("deleted", at=self._clock.now())))
            except Conflict:
                return False
        return True

    # Waiting.

    async def bound(self, batches: Iterable[Batch]) -> None:
        for batch in list(batches):
            await batch.done.wait()

    async def tried(self, batches: Iterable[Batch]) -> None:
        """Wait until each instance has a node, or was tried and has none."""
        left = [key for batch in batches for key in batch.keys]
        while left := [key for key in left if key in self._open and not self._was_tried(key)]:
            await self._clock.sleep(0.02)

    def _was_tried(self, key: Key) -> bool:
        assert self.scheduler is not None
        return self.scheduler.state(key) not in _UNTRIED

    def waiting(self) -> list[Key]:
        return list(self._open)

    # Watching.

    async def _watch(self, revision: int) -> None:
        async for changes in self.store.watch(Instance.kind, since=revision):
            for change in changes:
                if not change.bookmark:
                    self._see(change)

    def _see(self, change: Change) -> None:
        before, after = change.before, change.after
        if not isinstance(after, Instance):
            self._settled(change.key)
        elif after.spec.stop is not None:
            kept = Key(Workload.kind, after.meta.namespace, after.spec.workload) in self._kept
            self._settled(change.key)
            if not kept:
                self._ended.append(after)
                self._end.set()
        elif after.spec.node and not (before is not None and before.node):
            self.meter.count_bind(after)
            self._settled(change.key)

    def _settled(self, key: Key) -> None:
        batch = self._open.pop(key, None)
        if batch is not None:
            batch.left -= 1
            if not batch.left:
                batch.done.set()

    async def _reap(self) -> None:
        while True:
            await self._end.wait()
            self._end.clear()
            ended, self._ended = self._ended, []
            for start in range(0, len(ended), WRITES_MOST):
                rest = [Delete(each.key, each.meta.version) for each in ended[start : start + WRITES_MOST]]
                while rest:
                    try:
                        await self.store.commit(*rest)
                    except Conflict as error:
                        rest = [each for each in rest if each.key != error.facts.get("key")]
                    else:
                        break
