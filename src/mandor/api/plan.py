"""Plan: reports what an apply, a drain or the loss of a node would do, from a forecast."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct

from mandor.api.apply import Result
from mandor.api.foreign import ImportReport
from mandor.api.scheduling import ForecastWorkspace
from mandor.model.meta import Key, Object
from mandor.model.resources import Resources
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import SchedulerConfig
from mandor.placement.forecast import Controls, Forecast, Left, Outcome
from mandor.placement.framework.identity import names_shown
from mandor.placement.framework.request import CPU, MEMORY
from mandor.placement.table import Table


class Placement(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that would get a node."""

    namespace: str
    instance: str
    workload: str
    node: str
    before: str = ""
    """The node it would leave."""
    relaxed: tuple[str, ...] = ()
    """The soft rules that would be given up for it."""
    form: str = ""
    """The alternative that it would be; empty: the main form."""


class Pending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that would stay pending, and the reason."""

    namespace: str
    instance: str
    workload: str
    message: str
    before: str = ""
    """The node it would leave."""


class Ending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that would end without a replacement."""

    namespace: str
    instance: str
    node: str = ""
    reason: str = ""


class Victim(Struct, frozen=True, kw_only=True):
    """An instance that would be evicted to make room for another one."""

    namespace: str
    instance: str
    makes_room_for: str


class Holding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The places that a reservation would hold; for one that begins later: if it began now."""

    namespace: str
    reservation: str
    phase: str
    each: Resources
    """Resources of each place."""
    count: int
    """Number of places that the reservation asks for."""
    held: dict[str, int] = {}
    """Number of places on each node."""
    message: str

    @property
    def short(self) -> bool:
        return self.phase != "Over" and sum(self.held.values()) < self.count


class GroupPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Number of instances of a group by node."""

    namespace: str
    workload: str
    group: str
    placed: int = 0
    pending: int = 0
    nodes: dict[str, int] = {}


class Use(Struct, frozen=True):
    cpu_milli: int
    memory_bytes: int
    instances: int


class NodeUse(Struct, frozen=True, kw_only=True):
    """Allocatable and reserved resources of a node on which the reservations change."""

    node: str
    cpu_milli: int
    memory_bytes: int
    before: Use
    after: Use


class Totals(Struct, frozen=True, kw_only=True):
    placed: int
    pending: int
    relaxed: int
    nodes_used: int
    """Number of nodes with at least one instance."""
    fullest_percent: int
    """Share of memory or CPU, whichever is larger, that is reserved on the fullest node."""


class Difference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that would get another node; an empty node: it would stay pending."""

    namespace: str
    instance: str
    now: str = ""
    then: str = ""


class Comparison(Struct, frozen=True, kw_only=True):
    """Forecasts with the current configuration of the scheduler (`now`) and with the given one (`then`)."""

    now: Totals
    then: Totals
    differences: tuple[Difference, ...]


class PlanReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    fits: bool
    """Whether every affected instance would get a node, and every reservation all its places."""
    revision: int
    results: tuple[Result, ...] = ()
    """The results that an apply would return."""
    imported: ImportReport | None = None
    """Report of the conversion, if the files were those of another tool."""
    groups: tuple[GroupPlan, ...] = ()
    placements: tuple[Placement, ...] = ()
    pending: tuple[Pending, ...] = ()
    waiting: tuple[Pending, ...] = ()
    """Instances that are pending now and would stay pending."""
    ended: tuple[Ending, ...] = ()
    victims: tuple[Victim, ...] = ()
    reservations: tuple[Holding, ...] = ()
    nodes: tuple[NodeUse, ...] = ()
    hidden: int = 0
    """Number of affected instances in namespaces that the caller may not read."""
    complete: bool = True
    """False: the forecast reached its time limit; the report contains what would happen first."""
    compared: Comparison | None = None


@dataclass(frozen=True, slots=True)
class ForecastChanges:
    """The changes to forecast."""

    puts: tuple[Object, ...] = ()
    drain: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    config: SchedulerConfig | None = None
    """Another configuration of the scheduler; None: the current one."""

    @property
    def concerns_all(self) -> bool:
        """Whether instances that are already pending are part of the report."""
        return self.config is not None


@dataclass(frozen=True, slots=True)
class _Forecasted:
    """The result of one forecast."""

    outcome: Outcome
    model: ClusterModel
    before: Mapping[str, Use]
    after: Mapping[str, Use]

    def left(self, *, include_pending: bool) -> dict[Key, Left]:
        return {**self.outcome.left, **self.outcome.still_left} if include_pending else self.outcome.left


def report(
    workspace: ForecastWorkspace,
    controls: Controls,
    changes: ForecastChanges,
    *,
    now: float,
    results: tuple[Result, ...],
    revision: int,
    sees: Callable[[str], bool],
    imported: ImportReport | None = None,
) -> PlanReport:
    forecast = _forecast(workspace, controls, changes, now, changes.config)
    compared = None
    if changes.config is not None:
        compared = _compared(_forecast(workspace, controls, changes, now, None), forecast, sees)
    outcome, left = forecast.outcome, forecast.left(include_pending=changes.concerns_all)
    owner = _owners(forecast.model)
    keys = (*outcome.placed, *left, *outcome.ended)
    reservations = tuple(_holdings(outcome))
    return PlanReport(
        fits=not left and outcome.complete and not any(each.short for each in reservations),
        revision=revision,
        results=results,
        imported=imported,
        groups=tuple(_groups(forecast, left, sees)),
        placements=tuple(
            Placement(
                namespace=key.namespace,
                instance=key.name,
                workload=owner(key),
                node=placed.node,
                before=placed.before,
                relaxed=placed.relaxed,
                form=placed.form,
            )
            for key, placed in _seen(outcome.placed, sees)
        ),
        pending=tuple(_pending(left, owner, sees)),
        waiting=() if changes.concerns_all else tuple(_pending(outcome.still_left, owner, sees)),
        ended=tuple(
            Ending(namespace=key.namespace, instance=key.name, node=ended.node, reason=ended.reason)
            for key, ended in _seen(outcome.ended, sees)
        ),
        victims=tuple(
            Victim(
                namespace=key.namespace,
                instance=key.name,
                makes_room_for=by.name if sees(by.namespace) else names_shown((by,), key.namespace),
            )
            for key, by in _seen(outcome.victims, sees)
        ),
        reservations=reservations,
        nodes=tuple(_node_uses(forecast)),
        hidden=sum(not sees(key.namespace) for key in keys),
        complete=outcome.complete,
        compared=compared,
    )


def _forecast(
    workspace: ForecastWorkspace,
    controls: Controls,
    changes: ForecastChanges,
    now: float,
    config: SchedulerConfig | None,
) -> _Forecasted:
    model = workspace.model()
    before = _uses(model.table)
    running = Forecast(
        model,
        workspace.profiles(model, config),
        controls,
        now=now,
        consult=workspace.consult,
        enough=workspace.expired,
        watch=workspace.guard,
    )
    for node in changes.without:
        running.lose(node)
    for node in changes.drain:
        running.drain(node)
    for value in changes.puts:
        running.put(value)
    return _Forecasted(running.run(), model, before, _uses(model.table))


def _uses(table: Table) -> dict[str, Use]:
    nodes = table.snapshot()
    cpu, memory = (nodes.allocatable[nodes.rows[name]] - nodes.free[nodes.rows[name]] for name in (CPU, MEMORY))
    return {
        node.meta.name: Use(int(cpu[slot]), int(memory[slot]), int(nodes.instances[slot]))
        for slot, node in enumerate(nodes.nodes)
    }


def _node_uses(forecast: _Forecasted) -> Iterable[NodeUse]:
    for name, after in sorted(forecast.after.items()):
        before = forecast.before[name]
        if before != after:
            room = forecast.model.nodes[name].allocatable
            yield NodeUse(
                node=name, cpu_milli=room.cpu_milli, memory_bytes=room.memory_bytes, before=before, after=after
            )


def _groups(forecast: _Forecasted, left: Mapping[Key, Left], sees: Callable[[str], bool]) -> Iterable[GroupPlan]:
    found: dict[tuple[str, str, str], tuple[dict[str, int], list[Key]]] = {}
    for key in (*forecast.outcome.placed, *left):
        if not sees(key.namespace):
            continue
        spec = forecast.model.instances[key].spec
        nodes, waiting = found.setdefault((key.namespace, spec.workload, spec.group), ({}, []))
        placed = forecast.outcome.placed.get(key)
        if placed is not None:
            nodes[placed.node] = nodes.get(placed.node, 0) + 1
        else:
            waiting.append(key)
    for (namespace, workload, group), (nodes, waiting) in found.items():
        yield GroupPlan(
            namespace=namespace,
            workload=workload,
            group=group,
            placed=sum(nodes.values()),
            pending=len(waiting),
            nodes=dict(sorted(nodes.items())),
        )


def _pending(left: Mapping[Key, Left], owner: Callable[[Key], str], sees: Callable[[str], bool]) -> Iterable[Pending]:
    for key, each in _seen(left, sees):
        yield Pending(
            namespace=key.namespace, instance=key.name, workload=owner(key), message=each.message, before=each.before
        )


def _holdings(outcome: Outcome) -> Iterable[Holding]:
    for key, each in outcome.held.items():
        yield Holding(
            namespace=key.namespace,
            reservation=key.name,
            phase=each.status.phase,
            each=each.spec.resources.request,
            count=each.spec.count,
            held=dict(sorted(each.status.held.items())),
            message=each.status.message,
        )


def _compared(now: _Forecasted, then: _Forecasted, sees: Callable[[str], bool]) -> Comparison:
    keys = dict.fromkeys((*now.outcome.placed, *then.outcome.placed))
    places = [(key, _node(now, key), _node(then, key)) for key in keys if sees(key.namespace)]
    return Comparison(
        now=_totals(now),
        then=_totals(then),
        differences=tuple(
            Difference(namespace=key.namespace, instance=key.name, now=here, then=there)
            for key, here, there in places
            if here != there
        ),
    )


def _node(forecast: _Forecasted, key: Key) -> str:
    placed = forecast.outcome.placed.get(key)
    return placed.node if placed is not None else ""


def _totals(forecast: _Forecasted) -> Totals:
    outcome = forecast.outcome
    return Totals(
        placed=len(outcome.placed),
        pending=len(forecast.left(include_pending=True)),
        relaxed=sum(bool(each.relaxed) for each in outcome.placed.values()),
        nodes_used=sum(use.instances > 0 for use in forecast.after.values()),
        fullest_percent=max((_percent(forecast.model, name, use) for name, use in forecast.after.items()), default=0),
    )


def _percent(model: ClusterModel, node: str, use: Use) -> int:
    room = model.nodes[node].allocatable
    return max(
        use.cpu_milli * 100 // max(room.cpu_milli, 1),
        use.memory_bytes * 100 // max(room.memory_bytes, 1),
    )


def _owners(model: ClusterModel) -> Callable[[Key], str]:
    return lambda key: model.instances[key].spec.workload if key in model.instances else ""


V = TypeVar("V")


def _seen(found: Mapping[Key, V], sees: Callable[[str], bool]) -> Iterable[tuple[Key, V]]:
    return [(key, each) for key, each in found.items() if sees(key.namespace)]
