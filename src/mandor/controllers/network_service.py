"""ServiceController: creates the services that workloads declare, and gives every service a virtual address."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import ClassVar

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.network_service_plan import needs_number, plan_services, with_number
from mandor.controllers.writer import Writer
from mandor.errors import Conflict
from mandor.model.meta import Key, Object
from mandor.model.service import Service
from mandor.model.workload import Workload
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

AGAIN_SECONDS = 0.1
"""Seconds until a plan that met a conflict is made again."""
WAIT_SECONDS = 30.0
"""Seconds between attempts to give a service a number while none is free."""


class ServiceController(Controller[Key]):
    """A key is that of a workload, or of a service without a virtual address. One worker assigns all numbers."""

    name: ClassVar[str] = "service"
    watches: ClassVar[tuple[str, ...]] = (Workload.kind, Service.kind)
    workers: ClassVar[int] = 1

    def __init__(self, store: Store, recorder: Recorder) -> None:
        self._store, self._recorder = store, recorder
        self._services: Grouped[str, Service] = Grouped(_namespace)
        self._numbers: dict[int, Key] = {}
        self._held: Counter[str] = Counter()
        """Count of the numbers of each namespace."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads = mirrors[Workload.kind]
        self._all = mirrors[Service.kind]
        self._writer = Writer(self._store, mirrors)

    def observe(self, change: Change) -> Iterable[Key]:
        before, after, value = change.before, change.after, change.value
        if isinstance(value, Service):
            self._observe_service(
                before if isinstance(before, Service) else None, after if isinstance(after, Service) else None
            )
            # The owner recreates a deleted service; a workload whose name was taken may have it now.
            owners = [value.status.owner] if value.status.owner else self._declaring(value) if after is None else []
            keys = [Key(Workload.kind, value.meta.namespace, each) for each in owners]
            return [*keys, value.key] if isinstance(after, Service) and needs_number(after) else keys
        if change.status_only:
            return ()
        specs = [each.spec.services for each in (before, after) if isinstance(each, Workload)]
        return (value.key,) if any(specs) else ()

    def _observe_service(self, before: Service | None, after: Service | None) -> None:
        self._services.update(before, after)
        if before is not None and self._numbers.get(before.status.number) == before.key:
            del self._numbers[before.status.number]
            self._held[before.meta.namespace] -= 1
        if after is not None and after.status.number:
            self._numbers[after.status.number] = after.key
            self._held[after.meta.namespace] += 1

    def _declaring(self, service: Service) -> list[str]:
        """Return the workloads of the namespace that declare a service of this name."""
        return [
            each.meta.name
            for each in self._workloads.items()
            if isinstance(each, Workload)
            and each.meta.namespace == service.meta.namespace
            and any((declared.name or each.meta.name) == service.meta.name for declared in each.spec.services)
        ]

    def subject(self, key: Key) -> Object | None:
        return self._workloads.get(key) if key.kind == Workload.kind else self._all.get(key)

    async def reconcile(self, key: Key) -> float | None:
        if key.kind == Service.kind:
            return await self._assign(key)
        workload = self._workloads.get(key)
        draft = plan_services(
            key, workload if isinstance(workload, Workload) else None, self._services.of(key.namespace)
        )
        try:
            await self._writer.commit(draft.writes)
        except Conflict:
            return AGAIN_SECONDS
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")
        return None

    async def _assign(self, key: Key) -> float | None:
        service = self._all.get(key)
        if not isinstance(service, Service) or not needs_number(service):
            return None
        changed = with_number(service, self._numbers, self._held[key.namespace])
        try:
            await self._writer.commit([Put(changed)] if changed != service else [])
        except Conflict:
            return AGAIN_SECONDS
        return WAIT_SECONDS if needs_number(changed) else None


def _namespace(value: Service) -> str:
    return value.meta.namespace
