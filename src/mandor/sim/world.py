"""A control plane in one process: the real scheduler and controllers on a memory store and any clock."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from mandor.controllers.catalog import make_controllers
from mandor.controllers.node_plan import NodeTimes
from mandor.controllers.runner import run_all
from mandor.errors import Conflict
from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.record import Event
from mandor.model.workload import Workload
from mandor.scheduler.loop import Scheduler
from mandor.store.base import Delete, Put, Store
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object


class World:
    """A control plane without nodes, which subclasses add. `checks` are invariants that `check` runs."""

    def __init__(self, clock: Clock, store: MemoryStore, *, times: NodeTimes | None = None, seed: str = "") -> None:
        self.store = store
        self.times = times or NodeTimes()
        self.seed = seed
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.checks: list[Callable[[], None]] = []
        self.scheduler: Scheduler | None = None
        self.scheduler_store: Store | None = None
        """Store of the scheduler, if not `store`."""
        self.scheduler_options: dict[str, Any] = {}
        self.controller_store: Store | None = None
        """Store of the controllers, if not `store`."""
        self.controller_options: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self.start_controllers()
        self.start_scheduler()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._tasks):
            await self.kill(name)

    def start_controllers(self) -> None:
        store = self.controller_store or self.store
        recorder = Recorder(store, "controllers", self._clock)
        controllers = make_controllers(store, self._clock, recorder, times=self.times, **self.controller_options)
        self.start("controllers", run_all(controllers, store, self._clock))
        self.start("their recorder", recorder.run())

    def start_scheduler(self) -> None:
        store = self.scheduler_store or self.store
        recorder = Recorder(store, "scheduler", self._clock)
        self.scheduler = Scheduler(store, self._clock, recorder, seed=self.seed, **self.scheduler_options)
        self.start("scheduler", self.scheduler.run())
        self.start("its recorder", recorder.run())

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self._tasks[name] = asyncio.ensure_future(work)

    async def kill(self, name: str) -> None:
        """Cancel a task as a crash does: it writes nothing more."""
        task = self._tasks.pop(name)
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait({task})

    def check(self) -> None:
        """Raise the error of a failed task or violated invariant."""
        for task in self._tasks.values():
            if task.done():
                task.result()
        for check in self.checks:
            check()

    # Lookups.

    def find(self, kind: type[O], name: str, namespace: str = "default") -> O | None:
        found = self.store.index.get(Key(kind.kind, namespace, name))
        return found if isinstance(found, kind) else None

    def all(self, kind: type[O]) -> list[O]:
        return [each for each in self.store.index.snapshot(kind.kind) if isinstance(each, kind)]

    def instances(self, workload: str | None = None) -> list[Instance]:
        found = [each for each in self.all(Instance) if workload in {None, each.spec.workload}]
        return sorted(found, key=lambda each: (each.spec.workload, each.spec.group, each.spec.index))

    def instance(self, name: str) -> Instance:
        found = self.find(Instance, name)
        assert found is not None, f"there is no {name}: {self.phases()}"
        return found

    def workload(self, name: str) -> Workload:
        found = self.find(Workload, name)
        assert found is not None
        return found

    def phases(self) -> dict[str, str]:
        return {each.meta.name: f"{each.phase.value} {each.node}".strip() for each in self.instances()}

    def node_phase(self, name: str) -> NodePhase:
        found = self.find(Node, name, "")
        assert found is not None
        return found.status.phase

    def events(self, reason: str) -> list[Event]:
        return [each for each in self.all(Event) if each.spec.reason == reason]

    def serving_count(self, workload: str) -> int:
        return sum(each.phase is Phase.RUNNING and each.status.ready for each in self.instances(workload))

    # Actions of users.

    async def add(self, value: Object) -> None:
        await self.store.commit(Put(value))

    async def apply(self, wanted: Workload) -> None:
        """Create or update a workload."""
        while True:
            found = self.find(Workload, wanted.meta.name, wanted.meta.namespace)
            meta = found.meta if found else Meta(name=wanted.meta.name, namespace=wanted.meta.namespace)
            meta = msgspec.structs.replace(meta, labels=wanted.meta.labels)
            value = wanted.changed(meta=meta, status=found.status if found else wanted.status)
            try:
                await self.store.commit(Put(value))
            except Conflict:
                continue
            return

    async def delete(self, value: Object) -> None:
        while (found := self.store.index.get(value.key)) is not None:
            try:
                await self.store.commit(Delete(found.key, found.meta.version))
            except Conflict:
                continue

    async def stop_instance(self, name: str, reason: str = "deleted by user") -> None:
        await self.store.commit(Put(self.instance(name).stopping(reason, at=self._clock.now())))

    async def change_node(self, name: str, **spec: Any) -> None:
        while True:
            found = self.find(Node, name, "")
            assert found is not None
            try:
                await self.store.commit(Put(found.changed(spec=msgspec.structs.replace(found.spec, **spec))))
            except Conflict:
                continue
            return
