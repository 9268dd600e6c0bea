"""SecretChangeController: restarts workloads with `on_change: restart` when the value of a secret changes."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.draft import Draft
from mandor.controllers.release_plan import current_release
from mandor.controllers.secret_change_plan import plan_change
from mandor.controllers.secret_users import AGAIN_SECONDS, SecretUsers, content_ids
from mandor.controllers.writer import Writer
from mandor.errors import Conflict
from mandor.model.meta import Key, Object
from mandor.model.secret import Secret
from mandor.model.secret_change import restart_secrets
from mandor.model.workload import Release, Workload
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


class SecretChangeController(Controller[Key]):
    """A key is that of a workload with `on_change: restart`."""

    name: ClassVar[str] = "secret-change"
    watches: ClassVar[tuple[str, ...]] = (Workload.kind, Release.kind, Secret.kind)
    workers: ClassVar[int] = 1

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self._users = SecretUsers(restart_secrets)
        self._releases: Grouped[Key, Release] = Grouped(_workload_key)

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads = mirrors[Workload.kind]
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        before, after, value = change.before, change.after, change.value
        if isinstance(value, Secret):
            return self._users.observe_secret(change)
        if isinstance(value, Release):
            self._releases.update(
                before if isinstance(before, Release) else None, after if isinstance(after, Release) else None
            )
            key = _workload_key(value)
            return (key,) if key in self._users and after is not None else ()
        return self._users.observe_workload(change)

    def subject(self, key: Key) -> Object | None:
        return self._workloads.get(key)

    async def reconcile(self, key: Key) -> float | None:
        workload = self._workloads.get(key)
        if not isinstance(workload, Workload) or key not in self._users:
            return None
        unmade = Draft()
        release = current_release(unmade, workload, self._releases.of(key))
        if unmade.writes:
            return None  # The workload controller creates the release, which is observed.
        current = await content_ids(self._store, key.namespace, self._users.names(key))
        draft = plan_change(workload, release, current)
        try:
            await self._writer.commit(draft.writes)
        except Conflict:
            return AGAIN_SECONDS
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message)
        return None


def _workload_key(release: Release) -> Key:
    return Key(Workload.kind, release.meta.namespace, release.spec.workload)
