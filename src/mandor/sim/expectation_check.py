"""Whether a run was as expected: from its results, and from who ran where and when."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from mandor.lib.quantity import Seconds
from mandor.sim.expectation import Expectation
from mandor.sim.history import always, together
from mandor.sim.history_recorder import HistoryRecorder
from mandor.sim.result import Failure, PhaseResult


def check_expectations(
    expectations: Iterable[Expectation],
    phases: Sequence[PhaseResult],
    history: HistoryRecorder,
    strategy: str,
    seed: int,
) -> list[Failure]:
    found = []
    for each in expectations:
        if each.strategy and strategy not in each.strategy:
            continue
        if each.nodes:
            found += [_failure(each, strategy, seed, "", text) for text in _apart_on(each, history, phases)]
        for phase in phases:
            if not each.phase or phase.name in each.phase:
                found += [_failure(each, strategy, seed, phase.name, text) for text in _broken(each, phase, history)]
    return found


def _failure(each: Expectation, strategy: str, seed: int, phase: str, message: str) -> Failure:
    return Failure(expectation=each.title, strategy=strategy, seed=seed, phase=phase, message=message)


def _broken(wanted: Expectation, phase: PhaseResult, history: HistoryRecorder) -> Iterator[str]:
    begin, end = phase.begin + wanted.after, phase.end
    if begin < end:
        yield from _not_running(wanted, history, begin, end)
        if wanted.apart and not wanted.nodes:
            yield from _shared_nodes(wanted, history, [(begin, end)])
    yield from _settled(wanted, phase)
    yield from _counted(wanted, phase)
    yield from _placed(wanted, phase)
    yield from _served(wanted, phase)


def _not_running(wanted: Expectation, history: HistoryRecorder, begin: float, end: float) -> Iterator[str]:
    for name in wanted.running:
        at = always(history.stays_of(name), begin, end)
        if at is not None:
            yield f"{name} does not run at {_time(at)}"
    if wanted.any_running:
        at = always(history.stays_of(*wanted.any_running), begin, end)
        if at is not None:
            yield f"none of {', '.join(wanted.any_running)} runs at {_time(at)}"


def _shared_nodes(
    wanted: Expectation, history: HistoryRecorder, windows: Sequence[tuple[float, float]]
) -> Iterator[str]:
    names = wanted.apart
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            at = together(history.stays_of(first), history.stays_of(second), windows)
            if at is not None:
                yield f"{first} and {second} run on one node at {_time(at)}"


def _apart_on(wanted: Expectation, history: HistoryRecorder, phases: Sequence[PhaseResult]) -> Iterator[str]:
    """Return the windows in which all nodes have been up for the required time."""
    end = phases[-1].end
    windows: list[tuple[float, float]] = []
    steps = [history.ready[name] for name in wanted.nodes if name in history.ready]
    cuts = sorted({0.0, end, *(at for each in steps for at in each.times if at < end)})
    since: float | None = None
    for left, right in pairwise(cuts):
        up = all(each.at(left) for each in steps)
        since = (left if since is None else since) if up else None
        if since is not None and since + wanted.after < right:
            windows.append((max(left, since + wanted.after), right))
    return _shared_nodes(wanted, history, windows)


def _settled(wanted: Expectation, phase: PhaseResult) -> Iterator[str]:
    if wanted.no_inversion:
        yield from phase.inversions
    if wanted.only_must_blocks:
        yield from phase.blocked
    if wanted.host_safe is not None:
        for node, seconds in phase.short_seconds.items():
            if seconds > wanted.host_safe:
                yield f"{node} was short for {_time(seconds)}"


def _counted(wanted: Expectation, phase: PhaseResult) -> Iterator[str]:
    counts = (
        ("pending", wanted.pending_most, len(phase.pending)),
        ("preemptions", wanted.preemptions_most, len(phase.preemptions)),
        ("preemptions in a chain", wanted.cascade_most, phase.cascade),
    )
    for what, most, count in counts:
        if most is not None and count > most:
            yield f"{count} {what}, and at most {most} are allowed"


def _placed(wanted: Expectation, phase: PhaseResult) -> Iterator[str]:
    for name, bounds in wanted.utilisation.items():
        percent = phase.nodes[name].memory_percent if name in phase.nodes else 0.0
        if not bounds.least <= percent <= bounds.most:
            yield f"{name} is at {percent:.0f} %, not between {bounds.least:g} % and {bounds.most:g} %"
    crossing = phase.crossing_percent
    if wanted.crossing_most is not None and crossing is not None and crossing > wanted.crossing_most:
        yield f"{crossing:g} % of the traffic crosses nodes, and at most {wanted.crossing_most:g} % are allowed"
    if wanted.evicted is not None:
        for instance, node in phase.evictions:
            if instance.rpartition("-")[0] not in wanted.evicted:
                yield f"{instance} was evicted from {node}"
    for name in wanted.empty:
        if name in phase.nodes and phase.nodes[name].instances:
            yield f"{', '.join(phase.nodes[name].instances)} run on {name}"


def _served(wanted: Expectation, phase: PhaseResult) -> Iterator[str]:
    for name, longest in wanted.downtime_most.items():
        seconds = _down(name, phase)
        if seconds > longest:
            yield f"{name} was down for {_time(seconds)}, and at most {longest} are allowed"
    for name, least in wanted.availability_least.items():
        budget = (100 - least) / 100 * (phase.end - phase.begin)
        if (seconds := _down(name, phase)) > budget:
            yield f"{name} was down for {_time(seconds)}: its error budget at {least:g} % is {_time(budget)}"
    for name, wants in wanted.instances.items():
        count = phase.workloads[name].running if name in phase.workloads else 0
        if not wants.least <= count <= wants.most:
            yield f"{count} of {name} serve, not {wants.least} to {wants.most}"


def _down(name: str, phase: PhaseResult) -> float:
    return phase.workloads[name].down_seconds if name in phase.workloads else phase.end - phase.begin


def _time(seconds: float) -> str:
    return str(Seconds(round(seconds)))
