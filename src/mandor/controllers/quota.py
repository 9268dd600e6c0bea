"""The quota controller: writes the used amounts into the status of each quota."""

from collections.abc import Iterable, Mapping, Sequence

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.quota_plan import plan
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.steps import Steps, pieces
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.quota import Quota
from mandor.model.resources import Resources
from mandor.model.workload import Release, Workload
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror

LOOKS = 6
"""Cost of reading one instance, in steps of `lib.steps`."""
PACE_SECONDS = 2.0
"""Seconds between two counts of a namespace, however many instances change."""


class QuotaController(Controller[str]):
    """Keys are namespaces. The status is informative: the scheduler enforces quotas with its own count."""

    name = "quota"
    watches = (Quota.kind, Instance.kind, Release.kind, Workload.kind)
    workers = 1

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._quotas: Grouped[str, Quota] = Grouped(_namespace)
        self._instances: Grouped[str, Instance] = Grouped(_namespace)
        """Instances of namespaces with a quota."""
        self._unread: set[str] = set()
        """Namespaces with a new quota whose existing instances have not been read yet."""
        self._rest_until: dict[str, float] = {}

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._all_instances = mirrors[Instance.kind]
        self._releases = mirrors[Release.kind]
        self._workloads = mirrors[Workload.kind]
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        return super().observe_all(changes) if self._quotas or isinstance(changes[0].value, Quota) else ()

    def observe(self, change: Change) -> Iterable[str]:
        before, after, value = change.before, change.after, change.value
        namespace = value.meta.namespace
        if isinstance(value, Quota):
            self._observe_quota(namespace, before, after)
            return (namespace,)
        if namespace not in self._quotas:
            return ()
        if isinstance(value, Instance):
            self._instances.update(
                before if isinstance(before, Instance) else None, after if isinstance(after, Instance) else None
            )
        return (namespace,)

    def _observe_quota(self, namespace: str, before: object, after: object) -> None:
        """Start reading the instances of a namespace with its first quota, and forget them after the last."""
        had = namespace in self._quotas
        self._quotas.update(before if isinstance(before, Quota) else None, after if isinstance(after, Quota) else None)
        if not had:
            self._unread.add(namespace)
        elif namespace not in self._quotas:
            self._unread.discard(namespace)
            self._instances.forget(namespace)

    async def reconcile(self, key: str) -> float | None:
        rest = self._rest_until.get(key, 0.0) - self._clock.monotonic()
        if rest > 0:
            return rest
        quotas = self._quotas.of(key)
        if not quotas:
            self._rest_until.pop(key, None)
            return None
        self._rest_until[key] = self._clock.monotonic() + PACE_SECONDS
        if key in self._unread:
            await in_turns(self._read(key))
            self._unread.discard(key)
        changed = await in_turns(plan(quotas, self._instances.of(key), self._request, self._class))
        await self._writer.commit([Put(each) for each in changed])
        return None

    def _read(self, namespace: str) -> Steps[None]:
        """Read the existing instances in small steps; changes may arrive meanwhile."""
        for piece in pieces(list(self._all_instances.items())):
            for each in piece:
                now = self._all_instances.get(each.key) if each.meta.namespace == namespace else None
                if isinstance(now, Instance) and namespace in self._quotas:
                    self._instances.change(namespace, None, now)
            yield LOOKS * len(piece)

    def _request(self, instance: Instance) -> Resources:
        claim = instance.spec.claim
        if claim is not None:
            return Resources(claim.cpu_milli, claim.memory_bytes)
        release = self._releases.get(Key(Release.kind, instance.meta.namespace, instance.spec.release))
        group = release.spec.groups.get(instance.spec.group) if isinstance(release, Release) else None
        return group.form(instance.spec.variant).request if group is not None else Resources()

    def _class(self, instance: Instance) -> str:
        workload = self._workloads.get(Key(Workload.kind, instance.meta.namespace, instance.spec.workload))
        named = workload.spec.priority if isinstance(workload, Workload) else None
        return named if isinstance(named, str) else ""


def _namespace(value: Quota | Instance) -> str:
    return value.meta.namespace
