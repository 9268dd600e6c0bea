"""SecretSignalController: writes changed content ids to instances whose files change in place (`on_change: signal`)."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.secret_change import AGAIN_SECONDS, NO_NAMES, content_ids
from mandor.controllers.secret_change_plan import plan_signals
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
        self._names: dict[Key, frozenset[str]] = {}
        """Secrets with `on_change: signal` by workload; workloads without any are left out."""
        self._readers: dict[Key, dict[Key, None]] = {}
        """The same by secret."""
        self._instances: Grouped[Key, Instance] = Grouped(self._workload_with_signals)
        """Instances of the workloads in `_names`."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads = mirrors[Workload.kind]
        self._all_instances = mirrors[Instance.kind]
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        before, after, value = change.before, change.after, change.value
        if isinstance(value, Instance):
            return self._observe_instance(change) if self._names else ()
        if isinstance(value, Secret):
            same = isinstance(before, Secret) and isinstance(after, Secret) and before.content_id == after.content_id
            return () if same or after is None else tuple(self._readers.get(value.key, ()))
        if change.status_only:
            return ()
        self._set(value.key, signal_secrets(after.spec.groups.values()) if isinstance(after, Workload) else NO_NAMES)
        return (value.key,) if value.key in self._names else ()

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
        return key if key in self._names else None

    def _set(self, key: Key, names: frozenset[str]) -> None:
        known = self._names.get(key, NO_NAMES)
        for name in known - names:
            secret = Key(Secret.kind, key.namespace, name)
            self._readers[secret].pop(key, None)
            if not self._readers[secret]:
                del self._readers[secret]
        for name in names:
            self._readers.setdefault(Key(Secret.kind, key.namespace, name), {})[key] = None
        if not names:
            self._names.pop(key, None)
            self._instances.forget(key)
            return
        self._names[key] = names
        if not known:
            for each in self._all_instances.items():
                if isinstance(each, Instance) and self._workload_with_signals(each) == key:
                    self._instances.update(None, each)

    def subject(self, key: Key) -> Object | None:
        return self._workloads.get(key)

    async def reconcile(self, key: Key) -> float | None:
        workload = self._workloads.get(key)
        if not isinstance(workload, Workload) or key not in self._names:
            return None
        instances = self._instances.of(key)
        current = await content_ids(self._store, key.namespace, self._names[key])
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
