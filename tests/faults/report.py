"""Figures of one or several trials: faults, results of writes, and time without a leader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.faults.history import Stored
from tests.faults.inflict import Suffered
from tests.faults.trial import Trial

ELECTIONS = ("scheduler", "controllers")
TAKES_THE_LEAD = frozenset({"kill the leader", "pause the leader", "cut the leader off from etcd"})


def report(trials: Sequence[Trial]) -> dict[str, Any]:
    calls = [call for trial in trials for call in trial.history.calls]
    lives = [life for trial in trials for life in trial.history.lives]
    faults = Counter(each.kind for trial in trials for each in trial.suffered)
    took = [time for trial in trials for time in failovers(trial.history.stored, trial.suffered)]
    leases = trials[0].lease
    return {
        "seeds": [trial.seed for trial in trials],
        "seconds": round(sum(trial.seconds for trial in trials), 1),
        "violations": [each for trial in trials for each in trial.violations],
        "faults": {"survived": sum(faults.values()), "by_kind": dict(sorted(faults.items()))},
        "writes": dict(Counter(call.outcome for call in calls)),
        "by_verb": {verb: dict(counts) for verb, counts in _by_verb(calls)},
        "reads": sum(len(trial.history.reads) for trial in trials),
        "changes_seen": sum(len(trial.history.stored) for trial in trials),
        "starts": len(lives),
        "instances_started": len({life.uid for life in lives}),
        "rest_seconds_most": round(max(trial.rest_seconds for trial in trials), 1),
        "lease_seconds": leases,
        "failover_under_faults": in_leases(took, leases),
        "without_leader": {
            election: round(max(longest(trial.history.stored, election) for trial in trials) / leases, 2)
            for election in ELECTIONS
        },
    }


def _by_verb(calls: Iterable[Any]) -> Iterator[tuple[str, Counter[str]]]:
    found: dict[str, Counter[str]] = {}
    for call in calls:
        found.setdefault(call.verb, Counter())[call.outcome] += 1
    yield from sorted(found.items())


def in_leases(seconds: Sequence[float], lease: float) -> dict[str, Any]:
    """As multiples of the lease."""
    found = sorted(each / lease for each in seconds)
    if not found:
        return {"times": 0}
    return {
        "times": len(found),
        "p50": round(found[len(found) // 2], 2),
        "p90": round(found[len(found) * 9 // 10], 2),
        "most": round(found[-1], 2),
    }


def terms(stored: Sequence[Stored], election: str) -> list[Stored]:
    return [each for each in stored if each.kind == "lease" and each.name == f"term-{election}"]


def took_over(stored: Sequence[Stored], election: str, after: float) -> float | None:
    """Return the start of the next term."""
    return next((each.at for each in terms(stored, election) if each.at > after), None)


def failovers(stored: Sequence[Stored], suffered: Sequence[Suffered]) -> list[float]:
    """Seconds from each fault that took the lead from its victim until another one had it."""
    found = []
    for fault in suffered:
        if fault.kind not in TAKES_THE_LEAD:
            continue
        for election in ELECTIONS:
            at = took_over(stored, election, fault.begun)
            if at is not None and at < fault.ended:
                found.append(at - fault.begun)
    return found


def longest(stored: Sequence[Stored], election: str) -> float:
    """Return the longest time between the last renewal of a leader and the term of the next one."""
    renewals = [each for each in stored if each.kind == "lease" and each.name == f"leader-{election}"]
    most = 0.0
    for term in terms(stored, election):
        last = [each.at for each in renewals if each.revision < term.revision]
        most = max(most, term.at - last[-1]) if last else most
    return most


def shown(found: Mapping[str, Any]) -> str:
    """For people, in a few lines."""
    writes, failover = found["writes"], found["failover_under_faults"]
    lines = [f"{found['faults']['survived']} faults survived in {found['seconds']:.0f} s, seeds {found['seeds']}"]
    lines += [f"  {count:4} x {kind}" for kind, count in found["faults"]["by_kind"].items()]
    told = ", ".join(f"{writes.get(each, 0)} {each}" for each in ("acknowledged", "refused", "unknown"))
    lines.append(f"writes: {told}; {found['reads']} reads; {found['changes_seen']} changes in the store")
    lines.append(f"{found['starts']} starts of {found['instances_started']} instances")
    lines.append(f"failover in leases of {found['lease_seconds']} s, with other faults at the same time: {failover}")
    lines.append(f"longest without a leader, in leases: {found['without_leader']}")
    lines += [f"BROKEN {each}" for each in found["violations"]]
    return "\n".join(lines)
