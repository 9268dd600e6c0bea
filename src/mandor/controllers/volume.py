"""The volume controller: writes the phase of each volume, and deletes or recreates volumes."""

from collections.abc import Iterable, Mapping, Sequence

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.volume_plan import VolumeInputs, plan
from mandor.controllers.writer import Writer
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder


class VolumeController(Controller[Key]):
    name = "volume"
    watches = (Volume.kind, Node.kind, Workload.kind, Instance.kind)
    workers = 2

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store = store
        self._recorder = recorder
        self._users: dict[Key, dict[str, Instance]] = {}
        self._on_node: Grouped[str, Volume] = Grouped(lambda volume: volume.status.node or None)
        self._of_workload: Grouped[tuple[str, str], Volume] = Grouped(
            lambda volume: (volume.meta.namespace, volume.status.workload) if volume.status.workload else None
        )

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[Key]:
        if isinstance(changes[0].value, Instance):
            changes = [
                each
                for each in changes
                if (each.after is not None and each.after.spec.volumes)
                or (each.before is not None and each.before.spec.volumes)
            ]
        return super().observe_all(changes)

    def observe(self, change: Change) -> Iterable[Key]:
        before, after = change.before, change.after
        value = change.value
        if isinstance(value, Volume):
            old, new = (each if isinstance(each, Volume) else None for each in (before, after))
            self._on_node.update(old, new)
            self._of_workload.update(old, new)
            return (value.key,)
        if isinstance(value, Instance):
            return self._observe_instance(before, after)
        if isinstance(value, Node):
            phases = [each.status.phase for each in (before, after) if isinstance(each, Node)]
            changed = len(set(phases)) > 1 or len(phases) == 1
            return [each.key for each in self._on_node.of(value.meta.name)] if changed else ()
        if (before is None) != (after is None):
            return [each.key for each in self._of_workload.of((value.meta.namespace, value.meta.name))]
        return ()

    def _observe_instance(self, before: object, after: object) -> Iterable[Key]:
        concerned = []
        for each, here in ((before, False), (after, True)):
            if not isinstance(each, Instance):
                continue
            for name in each.spec.volumes:
                key = Key(Volume.kind, each.meta.namespace, name)
                users = self._users.setdefault(key, {})
                if here and not each.phase.over:
                    users[each.meta.uid] = each
                else:
                    users.pop(each.meta.uid, None)
                if not users:
                    del self._users[key]
                concerned.append(key)
        return concerned

    async def reconcile(self, key: Key) -> float | None:
        volume = self._mirrors[Volume.kind].get(key)
        if not isinstance(volume, Volume):
            return None
        status = volume.status
        node = await self._find(Key(Node.kind, "", status.node)) if status.node else None
        owned = bool(status.workload) and (
            await self._find(Key(Workload.kind, key.namespace, status.workload)) is not None
        )
        users = list(self._users.get(key, {}).values())
        draft = plan(VolumeInputs(volume, node if isinstance(node, Node) else None, users, owned))
        if draft.writes:
            await self._writer.commit(draft.writes)
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return None

    async def _find(self, key: Key) -> object:
        """Look up an object; the store is read if the mirror does not show it yet."""
        return self._mirrors[key.kind].get(key) or await self._store.get(key)
