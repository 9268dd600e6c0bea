"""Plan: what an apply, a drain or the loss of a node would do, told from a forecast."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct

from mandor.api.apply import Result
from mandor.api.foreign import ImportReport
from mandor.api.scheduling import Bench
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
    """An instance that would have no node, and why."""

    namespace: str
    instance: str
    workload: str
    message: str
    before: str = ""
    """The node it would leave."""


class Ending(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that would end, with none in its place."""

    namespace: str
    instance: str
    node: str = ""
    reason: str = ""


class Victim(Struct, frozen=True, kw_only=True):
    """An instance that would have to make room for another one."""

    namespace: str
    instance: str
    makes_room_for: str


class Holding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a reservation would hold; one that begins later: if it began as things are now."""

    namespace: str
    reservation: str
    phase: str
    each: Resources
    """What each place holds."""
    count: int
    """So many places are wanted."""
    held: dict[str, int] = {}
    """So many places on each node."""
    message: str

    @property
    def short(self) -> bool:
        return self.phase != "Over" and sum(self.held.values()) < self.count


class GroupPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the instances of a group would go, counted."""

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
    """What is reserved on a node whose share changes, of what it has."""

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
    """Nodes with at least one instance."""
    fullest_percent: int
    """Of the node with the largest share of its memory or CPU reserved."""


class Difference(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An instance that would go elsewhere; no node: it would wait."""

    namespace: str
    instance: str
    now: str = ""
    then: str = ""


class Comparison(Struct, frozen=True, kw_only=True):
    """The configuration that holds, and the one that was given."""

    now: Totals
    then: Totals
    differences: tuple[Difference, ...]


class PlanReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    fits: bool
    """Everything that this concerns would have a node, and reservations all their places."""
    revision: int
    results: tuple[Result, ...] = ()
    """What an apply would write, as it would tell."""
    imported: ImportReport | None = None
    """What became of the keys of another tool's files."""
    groups: tuple[GroupPlan, ...] = ()
    placements: tuple[Placement, ...] = ()
    pending: tuple[Pending, ...] = ()
    waiting: tuple[Pending, ...] = ()
    """Who waits already, and would go on waiting."""
    ended: tuple[Ending, ...] = ()
    victims: tuple[Victim, ...] = ()
    reservations: tuple[Holding, ...] = ()
    nodes: tuple[NodeUse, ...] = ()
    hidden: int = 0
    """Instances of namespaces that the caller does not see."""
    complete: bool = True
    """False: it takes too long to rehearse in full; what is told is what happens first."""
    compared: Comparison | None = None


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be rehearsed."""

    puts: tuple[Object, ...] = ()
    drain: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    config: SchedulerConfig | None = None
    """Another configuration of the scheduler."""

    @property
    def concerns_all(self) -> bool:
        """Also those who wait already."""
        return self.config is not None


@dataclass(frozen=True, slots=True)
class _Act:
    """One forecast, over."""

    outcome: Outcome
    board: ClusterModel
    before: Mapping[str, Use]
    after: Mapping[str, Use]

    def left(self, *, everyone: bool) -> dict[Key, Left]:
        return {**self.outcome.left, **self.outcome.still_left} if everyone else self.outcome.left


def report(
    bench: Bench,
    controls: Controls,
    wish: Wish,
    *,
    now: float,
    results: tuple[Result, ...],
    revision: int,
    sees: Callable[[str], bool],
    imported: ImportReport | None = None,
) -> PlanReport:
    act = _forecast(bench, controls, wish, now, wish.config)
    compared = None
    if wish.config is not None:
        compared = _compared(_forecast(bench, controls, wish, now, None), act, sees)
    outcome, left = act.outcome, act.left(everyone=wish.concerns_all)
    owner = _owners(act.board)
    keys = (*outcome.placed, *left, *outcome.ended)
    reservations = tuple(_holdings(outcome))
    return PlanReport(
        fits=not left and outcome.complete and not any(each.short for each in reservations),
        revision=revision,
        results=results,
        imported=imported,
        groups=tuple(_groups(act, left, sees)),
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
        waiting=() if wish.concerns_all else tuple(_pending(outcome.still_left, owner, sees)),
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
        nodes=tuple(_node_uses(act)),
        hidden=sum(not sees(key.namespace) for key in keys),
        complete=outcome.complete,
        compared=compared,
    )


def _forecast(bench: Bench, controls: Controls, wish: Wish, now: float, config: SchedulerConfig | None) -> _Act:
    board = bench.board()
    before = _uses(board.table)
    forecast = Forecast(
        board,
        bench.profiles(board, config),
        controls,
        now=now,
        consult=bench.consult,
        enough=bench.enough,
        watch=bench.guard,
    )
    for node in wish.without:
        forecast.lose(node)
    for node in wish.drain:
        forecast.drain(node)
    for value in wish.puts:
        forecast.put(value)
    return _Act(forecast.run(), board, before, _uses(board.table))


def _uses(table: Table) -> dict[str, Use]:
    nodes = table.snapshot()
    used = nodes.allocatable - nodes.free
    cpu, memory = used[nodes.rows[CPU]], used[nodes.rows[MEMORY]]
    return {
        node.meta.name: Use(int(cpu[slot]), int(memory[slot]), int(nodes.instances[slot]))
        for slot, node in enumerate(nodes.nodes)
    }


def _node_uses(act: _Act) -> Iterable[NodeUse]:
    for name, after in sorted(act.after.items()):
        before = act.before[name]
        if before != after:
            room = act.board.nodes[name].allocatable
            yield NodeUse(
                node=name, cpu_milli=room.cpu_milli, memory_bytes=room.memory_bytes, before=before, after=after
            )


def _groups(act: _Act, left: Mapping[Key, Left], sees: Callable[[str], bool]) -> Iterable[GroupPlan]:
    found: dict[tuple[str, str, str], tuple[dict[str, int], list[Key]]] = {}
    for key in (*act.outcome.placed, *left):
        if not sees(key.namespace):
            continue
        spec = act.board.instances[key].spec
        nodes, waiting = found.setdefault((key.namespace, spec.workload, spec.group), ({}, []))
        placed = act.outcome.placed.get(key)
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


def _compared(now: _Act, then: _Act, sees: Callable[[str], bool]) -> Comparison:
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


def _node(act: _Act, key: Key) -> str:
    placed = act.outcome.placed.get(key)
    return placed.node if placed is not None else ""


def _totals(act: _Act) -> Totals:
    outcome = act.outcome
    return Totals(
        placed=len(outcome.placed),
        pending=len(act.left(everyone=True)),
        relaxed=sum(bool(each.relaxed) for each in outcome.placed.values()),
        nodes_used=sum(use.instances > 0 for use in act.after.values()),
        fullest_percent=max((_percent(act.board, name, use) for name, use in act.after.items()), default=0),
    )


def _percent(board: ClusterModel, node: str, use: Use) -> int:
    room = board.nodes[node].allocatable
    return max(
        use.cpu_milli * 100 // max(room.cpu_milli, 1),
        use.memory_bytes * 100 // max(room.memory_bytes, 1),
    )


def _owners(board: ClusterModel) -> Callable[[Key], str]:
    return lambda key: board.instances[key].spec.workload if key in board.instances else ""


V = TypeVar("V")


def _seen(found: Mapping[Key, V], sees: Callable[[str], bool]) -> Iterable[tuple[Key, V]]:
    return [(key, each) for key, each in found.items() if sees(key.namespace)]
