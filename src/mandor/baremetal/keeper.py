"""The keeper: tasks that time out, claims that nobody needs, workers that died, and what is kept of the past."""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from mandor.baremetal.failure import failure_of
from mandor.baremetal.settings import TaskSettings
from mandor.baremetal.task_plan import plan_sweep
from mandor.errors import Conflict, MandorError, NotFound
from mandor.lib.clock import Clock
from mandor.lib.steps import chosen, in_turns
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.vm_task import VmTask
from mandor.store.base import WRITES_MOST, Delete, Store, Write
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from mandor.store.tasks import change_task

log = logging.getLogger(__name__)


class Keeper:
    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        mirrors: tuple[Mirror, Mirror, Mirror],
        offer: Callable[[VmTask], None],
        settings: TaskSettings,
    ) -> None:
        """`mirrors`: of tasks, of claims, of nodes. `offer`: hands a task out again."""
        self._store, self._clock, self._recorder = store, clock, recorder
        self._tasks, self._claims, self._nodes = mirrors
        self._offer, self._settings = offer, settings
        self._offered: dict[str, float] = {}
        """When tasks were last handed out again, by uid: not at each look."""

    async def run(self) -> None:
        """For ever."""
        while True:
            try:
                await self.look()
            except MandorError as error:
                log.warning("tasks are not looked after: %s", error)
            await self._clock.sleep(self._settings.sweep_seconds)

    async def look(self) -> None:
        now = self._clock.now()
        known = list(self._tasks.items())
        tasks = await in_turns(chosen(known, lambda piece: [each for each in piece if isinstance(each, VmTask)]))
        claims = [each for each in self._claims.items() if isinstance(each, Instance)]
        nodes = {each.meta.name for each in self._nodes.items() if isinstance(each, Node)}
        sweep = await in_turns(plan_sweep(tasks, claims, nodes, self._settings, now))
        for task, reason, error in sweep.failed:
            await self._fail(task, reason, error)
        self._hand_out(sweep.published, now)
        await self._delete_orphans(sweep.orphans)
        await self._delete([Delete(each.key, each.meta.version) for each in sweep.forgotten])

    async def _fail(self, seen: VmTask, reason: str, error: str) -> None:
        def fail(task: VmTask) -> VmTask:
            if task.status.state != seen.status.state:
                return task
            return task.moved("Failed", self._clock.now(), error, error=error, reason=reason)

        try:
            after = await change_task(self._store, seen.key, fail, free=True, tell=partial(failure_of, self._recorder))
        except NotFound:
            return
        if after.status.state == "Failed":
            log.warning("task %s failed: %s", seen.meta.name, error)

    def _hand_out(self, tasks: Iterable[VmTask], now: float) -> None:
        before, self._offered = self._offered, {}
        for task in tasks:
            last = before.get(task.meta.uid, 0.0)
            if now - last >= self._settings.stuck_seconds:
                log.warning("task %s is stuck and handed out again", task.meta.name)
                self._recorder.note(task, "TaskStuck", "nobody works on it: it is handed out again", type="warning")
                self._offer(task)
                last = now
            self._offered[task.meta.uid] = last

    async def _delete_orphans(self, claims: Iterable[Instance]) -> None:
        """The mirrors run side by side: a task that is not seen yet may well hold it."""
        writes = []
        for claim in claims:
            assert claim.spec.claim is not None
            key = claim.key._replace(kind=VmTask.kind, name=claim.spec.claim.task)
            task = await self._store.get(key)
            if not (isinstance(task, VmTask) and task.holds):
                writes.append(Delete(claim.key, claim.meta.version))
        await self._delete(writes)

    async def _delete(self, writes: list[Delete]) -> None:
        for start in range(0, len(writes), WRITES_MOST):
            some: list[Write] = [*writes[start : start + WRITES_MOST]]
            try:
                await self._store.commit(*some)
            except Conflict as error:
                log.debug("some have moved on, and are looked at again: %s", error)
