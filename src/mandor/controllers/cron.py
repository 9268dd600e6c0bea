"""The cron controller: starts the runs of workloads with a schedule."""

from collections.abc import Iterable, Mapping

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.cron_plan import CronInputs, plan
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.model.meta import Key, Object
from mandor.model.workload import Workload
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


class CronController(Controller[Key]):
    """A run is a workload with the time in its name, so starting it twice has no effect."""

    name = "cron"
    watches = (Workload.kind,)
    workers = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._runs: Grouped[Key, Workload] = Grouped(_owner)

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads = mirrors[Workload.kind]
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        before, after = change.before, change.after
        seen = [each if isinstance(each, Workload) else None for each in (before, after)]
        self._runs.update(*seen)
        own = [each.key for each in seen if each is not None and each.spec.schedule is not None]
        owners = [_owner(each) for each in seen if each is not None]
        return [*own, *(each for each in owners if each is not None)]

    def subject(self, key: Key) -> Object | None:
        return self._workloads.get(key)

    async def reconcile(self, key: Key) -> float | None:
        found = self._workloads.get(key)
        workload = found if isinstance(found, Workload) else None
        runs = self._runs.of(key)
        own = {each.key for each in runs}

        def taken(name: str) -> bool:
            other = Key(Workload.kind, key.namespace, name)
            return other not in own and self._workloads.get(other) is not None

        draft = plan(CronInputs(workload, runs, taken), self._clock.now())
        if draft.writes:
            await self._writer.commit(draft.writes)
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return draft.again_seconds


def _owner(workload: Workload) -> Key | None:
    run_of = workload.spec.run_of
    return Key(Workload.kind, workload.meta.namespace, run_of) if run_of else None
