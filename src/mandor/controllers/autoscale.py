"""The autoscale controller: the count of a group follows what its instances use, or what a metric says."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from msgspec.structs import replace

from mandor.controllers.autoscale_message import describe_step, shown_readings
from mandor.controllers.autoscale_plan import History, Measured, differs, plan_count
from mandor.controllers.base import Controller, Grouped
from mandor.controllers.heartbeats import Servers
from mandor.controllers.writer import Writer
from mandor.errors import MandorError, Unavailable
from mandor.lib.clock import Clock
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.lib.turns import in_turns
from mandor.model.autoscale import Autoscale, AutoscaleStatus, Metric
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.phase import Phase
from mandor.model.record import Lease
from mandor.model.resources import Resources
from mandor.model.usage import GroupUsage, UsageSummary, usage_key
from mandor.model.workload import Release, Workload
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

PLAN_SECONDS = 5.0
"""Seconds between two evaluations of a group."""
METRIC_SECONDS = 15.0
"""Minimum seconds between two queries of one metric."""
STATUS_SECONDS = 15.0
"""Minimum seconds between two status writes that change only readings."""
BLIND_SECONDS = 60.0
"""Seconds without any measurement until a warning event is recorded."""

_Form = tuple[str, int]
"""A release and the number of one of its forms."""

Ask = Callable[[Metric], Awaitable[float]]
"""The number that a metric is now; a `MandorError` says why it is not known."""


async def no_metrics(metric: Metric) -> float:
    raise Unavailable("this process queries no metrics")


@dataclass(slots=True)
class _Group:
    """Measurements and timestamps of one group; kept in memory only."""

    history: History = field(default_factory=History)
    answer: float | None = None
    problem: str = ""
    asked_at: float = -METRIC_SECONDS
    written_at: float = -STATUS_SECONDS
    blind_since: float | None = None
    blind_recorded: bool = False


class AutoscaleController(Controller[Key]):
    name = "autoscale"
    watches = (Workload.kind, Release.kind, Instance.kind, UsageSummary.kind, Lease.kind)

    def __init__(self, store: Store, clock: Clock, recorder: Recorder, ask: Ask) -> None:
        self._store, self._clock, self._recorder, self._ask = store, clock, recorder, ask
        self._scaled: set[Key] = set()
        self._uncounted: set[Key] = set()
        """Workloads whose instances are not counted yet."""
        self._counting = asyncio.Lock()
        self._instances: Grouped[Key, Instance] = Grouped(_workload)
        """Instances of autoscaled workloads, by workload."""
        self._groups: dict[tuple[Key, str], _Group] = {}
        self._servers = Servers()
        self._tallies: dict[str, UsageSummary] = {}

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._workloads, self._releases = mirrors[Workload.kind], mirrors[Release.kind]
        self._all_instances = mirrors[Instance.kind]
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[Key]:
        if not isinstance(changes[0].value, Instance):
            return super().observe_all(changes)
        for change in changes if self._scaled else ():
            before, after, value = change.before, change.after, change.value
            if isinstance(value, Instance) and _workload(value) in self._scaled:
                self._instances.update(
                    before if isinstance(before, Instance) else None, after if isinstance(after, Instance) else None
                )
        return ()

    def observe(self, change: Change) -> Iterable[Key]:
        after, value = change.after, change.value
        if isinstance(value, Workload):
            return self._observe_workload(value, gone=after is None)
        if isinstance(value, Lease):
            self._servers.observe(value, self._clock.monotonic(), gone=after is None)
        elif isinstance(value, UsageSummary):
            self._tallies.pop(value.meta.name, None)
            if isinstance(after, UsageSummary):
                self._tallies[value.meta.name] = after
        return ()

    def _observe_workload(self, workload: Workload, *, gone: bool) -> Iterable[Key]:
        key = workload.key
        scaled = not gone and any(group.autoscale is not None for group in workload.spec.groups.values())
        if scaled and key not in self._scaled:
            self._scaled.add(key)
            self._uncounted.add(key)
        elif not scaled and key in self._scaled:
            self._scaled.discard(key)
            self._uncounted.discard(key)
            self._instances.forget(key)
            self._groups = {each: known for each, known in self._groups.items() if each[0] != key}
        return (key,) if scaled or (not gone and workload.status.autoscale) else ()

    async def reconcile(self, key: Key) -> float | None:
        workload = self._workloads.get(key)
        if not isinstance(workload, Workload):
            return None
        async with self._counting:
            await in_turns(self._count())
        used = self._used()
        groups, recorded = dict(workload.spec.groups), dict[str, AutoscaleStatus]()
        histories: dict[str, History] = {}
        due = False
        for name, group in workload.spec.groups.items():
            if group.autoscale is None:
                continue
            seen = await self._measure(workload, name, group.autoscale, used)
            known, now = self._groups.setdefault((key, name), _Group()), self._clock.monotonic()
            histories[name] = deepcopy(known.history)
            count, status = plan_count(group.autoscale, seen, histories[name], now)
            before = workload.status.autoscale.get(name)
            if count != group.replicas:
                groups[name] = replace(group, replicas=count)
            recorded[name] = _dated(before, status, describe_step(seen.count, count, status), self._clock.now())
            due = due or count != group.replicas or self._worth(known, before, recorded[name])
        if due or workload.status.autoscale.keys() != recorded.keys():
            spec = replace(workload.spec, groups=groups)
            await self._writer.commit(
                [Put(workload.changed(spec=spec, status=replace(workload.status, autoscale=recorded)))]
            )
        for name, history in histories.items():
            self._groups[(key, name)].history = history
            self._record_events(workload, name, recorded[name], due=due)
        return PLAN_SECONDS if recorded else None

    def _worth(self, known: _Group, before: AutoscaleStatus | None, after: AutoscaleStatus) -> bool:
        """Return whether to write the status: a new reason at once, new readings every `STATUS_SECONDS`."""
        if not differs(before, after):
            return False
        return (
            before is None
            or before.reason != after.reason
            or self._clock.monotonic() - known.written_at >= STATUS_SECONDS
        )

    # Measurements.

    def _count(self) -> Steps[None]:
        """Count the instances of all newly autoscaled workloads in one pass; changes may arrive between steps."""
        if not self._uncounted:
            return
        wanted, self._uncounted = self._uncounted, set()
        for piece in pieces(list(self._all_instances.items()), FEW):
            for each in piece:
                if isinstance(each, Instance) and _workload(each) in wanted:
                    now = self._all_instances.get(each.key)
                    if isinstance(now, Instance) and _workload(now) in self._scaled:
                        self._instances.update(None, now)
            yield WRITTEN * len(piece)

    def _used(self) -> dict[str, GroupUsage]:
        alive = self._servers.alive(self._clock.monotonic())
        found: dict[str, GroupUsage] = {}
        for tally in self._tallies.values():
            if tally.server in alive:
                for name, each in tally.spec.groups.items():
                    found[name] = found[name] + each if name in found else each
        return found

    async def _measure(
        self, workload: Workload, name: str, scaling: Autoscale, used: Mapping[str, GroupUsage]
    ) -> Measured:
        members, forms = await in_turns(_count_ready(self._instances.of(workload.key), name))
        ready = forms.total()
        known = self._groups.setdefault((workload.key, name), _Group())
        if scaling.metric is not None:
            await self._refresh(known, scaling.metric)
        return Measured(
            count=workload.spec.groups[name].count,
            ready=ready,
            waiting=members - ready,
            usage=used.get(usage_key(workload.meta.namespace, workload.meta.name, name), GroupUsage()),
            request=self._request(workload.meta.namespace, name, forms),
            metric=known.answer,
            metric_problem=known.problem,
        )

    async def _refresh(self, known: _Group, metric: Metric) -> None:
        if self._clock.monotonic() - known.asked_at < METRIC_SECONDS:
            return
        try:
            known.answer, known.problem = await self._ask(metric), ""
        except MandorError as error:
            known.answer, known.problem = None, str(error)
        known.asked_at = self._clock.monotonic()

    def _request(self, namespace: str, group: str, forms: Counter[_Form]) -> Resources:
        """Return the mean request of a ready instance; releases and forms may differ."""
        if not forms:
            return Resources()
        cpu = memory = 0
        for (release, variant), count in forms.items():
            found = self._releases.get(Key(Release.kind, namespace, release))
            if isinstance(found, Release):
                asked = found.spec.groups[group].form(variant).request
                cpu, memory = cpu + count * asked.cpu_milli, memory + count * asked.memory_bytes
        return Resources(cpu // forms.total(), memory // forms.total())

    # Events.

    def _record_events(self, workload: Workload, name: str, status: AutoscaleStatus, *, due: bool) -> None:
        known, now = self._groups[(workload.key, name)], self._clock.monotonic()
        before = workload.status.autoscale.get(name)
        if due:
            known.written_at = now
        if status.last_at and (before is None or before.last_at != status.last_at):
            self._recorder.note(workload, "Autoscaled", f"group {name}: {status.last}")
        if status.reason == "AtMost" and (before is None or before.reason != "AtMost"):
            message = f"group {name}: {status.message} ({shown_readings(status.readings)})"
            self._recorder.note(workload, "AutoscaleAtMost", message, type="warning")
        if status.reason != "NoMetrics":
            known.blind_since, known.blind_recorded = None, False
        elif known.blind_since is None:
            known.blind_since = now
        elif not known.blind_recorded and now - known.blind_since >= BLIND_SECONDS:
            known.blind_recorded = True
            self._recorder.note(
                workload, "AutoscaleBlind", f"group {name}: count unchanged: {status.message}", type="warning"
            )


def _dated(before: AutoscaleStatus | None, status: AutoscaleStatus, step: str, now: float) -> AutoscaleStatus:
    if step:
        return replace(status, last=step, last_at=now)
    return replace(status, last=before.last, last_at=before.last_at) if before is not None else status


def _count_ready(instances: Sequence[Instance], group: str) -> Steps[tuple[int, Counter[_Form]]]:
    """Return the number of instances that stay in the group, and the ready ones by release and form."""
    members, forms = 0, Counter[_Form]()
    for piece in pieces(instances, FEW):
        staying = [each for each in piece if each.spec.group == group and not _leaves(each)]
        members += len(staying)
        forms.update(
            (each.spec.release, each.spec.variant)
            for each in staying
            if each.phase is Phase.RUNNING and each.status.ready
        )
        yield 4 * len(piece)
    return members, forms


def _leaves(instance: Instance) -> bool:
    return instance.spec.stop is not None or instance.phase.over or instance.phase is Phase.LOST


def _workload(instance: Instance) -> Key:
    return Key(Workload.kind, instance.meta.namespace, instance.spec.workload)
