"""SecretSignalController: writes changed content ids to instances whose files change in place (`on_change: signal`)."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.secret_change_plan import plan_signals
from mandor.controllers.secret_users import AGAIN_SECONDS, SecretUsers, content_ids
from mandor.controllers.writer import Writer
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.secret import Secret
from mandor.model.secret_change import signal_secrets
from mandor.model.workload import Release, Workload
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


class SecretSignalController(Controller[Key]):
    """Reconciles workloads: a key is that of a workload with `on_change: signal`.

    A node watches its instances: a content id in `spec.secrets` of an instance reaches only the node that has to
    replace files, and a node that was away reads it when it lists its instances again."""

    name: ClassVar[str] = "secret-signal"
    watches: ClassVar[tuple[str, ...]] = (Workload.kind, Secret.kind, Instance.kind)
    workers: ClassVar[int] = 1

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self._users = SecretUsers(signal_secrets)
        self._instances: Grouped[Key, Instance] = Grouped(self._workload_with_signals)
        """Instances of the workloads in `_users`."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads = mirrors[Workload.kind]
        self._all_instances = mirrors[Instance.kind]
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        value = change.value
        if isinstance(value, Instance):
            return self._observe_instance(change) if self._users else ()
        if isinstance(value, Secret):
            return self._users.observe_secret(change)
        known = value.key in self._users
        keys = self._users.observe_workload(change)
        if value.key not in self._users:
            self._instances.forget(value.key)
        elif not known:
            for each in self._all_instances.items():
                if isinstance(each, Instance) and self._workload_with_signals(each) == value.key:
                    self._instances.update(None, each)
        return keys

    def _observe_instance(self, change: Change) -> Iterable[Key]:
        before, after = change.before, change.after
        self._instances.update(
            before if isinstance(before, Instance) else None, after if isinstance(after, Instance) else None
        )
        if not isinstance(after, Instance) or (isinstance(before, Instance) and before.spec == after.spec):
            return ()
        key = self._workload_with_signals(after)
        return () if key is None else (key,)

    def _workload_with_signals(self, instance: Instance) -> Key | None:
        key = Key(Workload.kind, instance.meta.namespace, instance.spec.workload)
        return key if key in self._users else None

    def subject(self, key: Key) -> Object | None:
        return self._workloads.get(key)

    async def reconcile(self, key: Key) -> float | None:
        workload = self._workloads.get(key)
        if not isinstance(workload, Workload) or key not in self._users:
            return None
        instances = self._instances.of(key)
        current = await content_ids(self._store, key.namespace, self._users.names(key))
        releases: dict[str, Release] = {}
        for name in sorted({each.spec.release for each in instances}):
            found = await self._store.get(Key(Release.kind, key.namespace, name))
            if isinstance(found, Release):
                releases[name] = found
        draft = plan_signals(workload, instances, releases, current)
        conflicts = await self._writer.commit_each(draft.writes)
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message)
        return AGAIN_SECONDS if conflicts else None
