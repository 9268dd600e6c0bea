"""The report: what every strategy came to, over all seeds, with the worst and a typical one in full."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from mandor.model.priority import PriorityClass
from mandor.sim.agreement import agreement
from mandor.sim.result import PhaseResult, RunResult
from mandor.sim.run import LoadedScenario

REASONS_MOST = 5


def make_report(loaded: LoadedScenario, results: Sequence[RunResult], seeds: Sequence[int]) -> dict[str, Any]:
    """Plain data: what `-o json` prints, and what the tables and the page are made of."""
    names = list(loaded.scenario.plans)
    classes = {each.meta.name: each.spec.value for each in loaded.first if isinstance(each, PriorityClass)}
    return {
        "scenario": loaded.scenario.name,
        "description": loaded.scenario.description,
        "seeds": list(seeds),
        "phases": [
            {"name": name, "begin_seconds": begin, "end_seconds": end} for name, begin, end in loaded.scenario.phases
        ],
        "passed": not any(each.failures for each in results),
        "strategies": [_strategy(name, [each for each in results if each.strategy == name], classes) for name in names],
        "replay": _replay(loaded, results),
        "imported": loaded.imported.plain() if loaded.imported.total else None,
        "failures": [msgspec.to_builtins(failure) for each in results for failure in each.failures],
    }


def _replay(loaded: LoadedScenario, results: Sequence[RunResult]) -> dict[str, Any] | None:
    """Return the agreement of each strategy with the recording, for the first seed."""
    recorded = loaded.recorded
    if recorded is None:
        return None
    first = {each.strategy: each for each in reversed(results)}
    return {
        "began_at": recorded.began_at,
        "seconds": round(recorded.seconds, 3),
        "notes": recorded.notes,
        "stays": [msgspec.to_builtins(each) for each in recorded.stays],
        "strategies": {name: agreement(recorded, first[name]) for name in loaded.scenario.plans},
    }


def _strategy(name: str, runs: Sequence[RunResult], classes: dict[str, int]) -> dict[str, Any]:
    ordered = sorted(runs, key=lambda each: (each.cost, each.seed))
    worst, typical = ordered[-1], ordered[len(ordered) // 2]
    return {
        "name": name,
        "runs": len(runs),
        "failed_runs": sum(bool(each.failures) for each in runs),
        "phases": [_phase([each.phases[number] for each in runs]) for number in range(len(runs[0].phases))],
        "downtime_by_class": _by_class(runs, classes),
        "worst_seed": worst.seed,
        "typical_seed": typical.seed,
        "worst": _whole(worst),
        "typical": _whole(typical),
    }


def _phase(runs: Sequence[PhaseResult]) -> dict[str, Any]:
    workloads = sorted({name for each in runs for name in each.workloads})
    waiting = Counter(wait.instance.rpartition("-")[0] for each in runs for wait in each.pending)
    reasons = Counter(wait.reason for each in runs for wait in each.pending)
    rules = Counter(rule for each in runs for _, rule in each.relaxed)
    crossing = [each.crossing_percent for each in runs if each.crossing_percent is not None]
    return {
        "name": runs[0].name,
        "nodes": {name: _node([each.nodes[name] for each in runs]) for name in runs[0].nodes},
        "pending": spread([len(each.pending) for each in runs]),
        "pending_by_workload": dict(sorted(waiting.items(), key=lambda item: (-item[1], item[0]))),
        "pending_reasons": dict(reasons.most_common(REASONS_MOST)),
        "preemptions": spread([len(each.preemptions) for each in runs]),
        "cascade_most": max((each.cascade for each in runs), default=0),
        "relaxed": spread([len(each.relaxed) for each in runs]),
        "relaxed_rules": dict(rules.most_common(REASONS_MOST)),
        "evictions": spread([len(each.evictions) for each in runs]),
        "crossing_percent": spread(crossing) if crossing else None,
        "host_short_seconds_most": max((s for each in runs for s in each.short_seconds.values()), default=0.0),
        "down_seconds": spread([each.down_seconds for each in runs]),
        "down_by_workload": {
            name: spread([each.workloads[name].down_seconds for each in runs if name in each.workloads])
            for name in workloads
            if any(each.workloads[name].down_seconds for each in runs if name in each.workloads)
        },
    }


def _node(states: Sequence[Any]) -> dict[str, Any]:
    counts = Counter(name for each in states for name in each.instances)
    return {
        "ready_share": round(sum(each.ready for each in states) / len(states), 3),
        "memory_percent": spread([each.memory_percent for each in states]),
        "cpu_percent": spread([each.cpu_percent for each in states]),
        "used_percent": spread([each.used_percent for each in states]),
        "peak_percent": spread([each.peak_percent for each in states]),
        "instances": {name: round(count / len(states), 3) for name, count in sorted(counts.items())},
    }


def _by_class(runs: Sequence[RunResult], classes: dict[str, int]) -> dict[str, dict[str, float]]:
    """Seconds without an instance, summed over the workloads of a class, for each run."""
    names = {value: name for name, value in classes.items()}
    sums: dict[str, list[float]] = {}
    for run in runs:
        mine: Counter[str] = Counter()
        for phase in run.phases:
            for each in phase.workloads.values():
                mine[names.get(each.priority, f"priority {each.priority}")] += each.down_seconds  # type: ignore[assignment]
        for name, seconds in mine.items():
            sums.setdefault(name, []).append(seconds)
    order = sorted(sums, key=lambda name: -(classes[name] if name in classes else int(name.removeprefix("priority "))))
    return {name: spread(sums[name]) for name in order}


def _whole(run: RunResult) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(run)
    return found


def spread(values: Iterable[float]) -> dict[str, float]:
    """The least, the middle one, the most."""
    ordered = sorted(values)
    if not ordered:
        return {"least": 0, "median": 0, "most": 0}
    return {"least": ordered[0], "median": ordered[len(ordered) // 2], "most": ordered[-1]}
