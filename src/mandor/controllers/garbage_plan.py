"""Plan for expired and orphaned objects."""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from mandor.lib.steps import Steps, chosen, ordered, pieces
from mandor.model.decision import DecisionRecord
from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.phase import Phase
from mandor.model.record import Event, HeartbeatSummary, Lease, Server, Session, Token
from mandor.model.usage import UsageSummary
from mandor.model.workload import Release, Workload

O = TypeVar("O", bound=Object)  # noqa: E741 - O for object
_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Keep:
    """Retention by age and by number; objects beyond either are deleted."""

    event_seconds: float = _DAY
    events_most: int = 20_000
    decision_seconds: float = _DAY
    decisions_most: int = 5_000
    finished_seconds: float = 7 * _DAY
    finished_most: int = 50
    """Number of instances kept per ended batch; failed ones are kept longest."""
    session_seconds: float = 60.0
    """Age in seconds of sessions of dead servers; any session is deleted after a day."""
    server_seconds: float = 60.0
    """Seconds without renewal, on the observer's clock, after which a server's lease is deleted."""
    sweep_seconds: float = 30.0


def old_events(events: Sequence[Event], keep: Keep, now: float) -> Steps[list[Object]]:
    return _old(
        events,
        lambda piece: [event.spec.last_at or event.meta.created_at for event in piece],
        now - keep.event_seconds,
        keep.events_most,
    )


def old_decisions(decisions: Sequence[DecisionRecord], keep: Keep, now: float) -> Steps[list[Object]]:
    return _old(
        decisions, lambda piece: [each.spec.at for each in piece], now - keep.decision_seconds, keep.decisions_most
    )


def _old(
    values: Sequence[O], times_of: Callable[[Sequence[O]], list[float]], before: float, most: int
) -> Steps[list[Object]]:
    """Return the objects older than `before`, and the oldest ones beyond `most`."""
    times = yield from chosen(values, times_of)
    if len(values) <= most and min(times, default=before) >= before:
        return []
    newest_first = yield from ordered(range(len(values)), key=lambda index: (-times[index], -index))
    kept = newest_first[:most]
    old = yield from chosen(kept, lambda piece: [values[index] for index in piece if times[index] < before])
    rest = yield from chosen(newest_first[most:], lambda piece: [values[index] for index in piece])
    return [*old, *rest]


def expired_tokens(tokens: Iterable[Token], now: float) -> list[Object]:
    return [token for token in tokens if 0 < token.spec.expires_at < now]


def stale_sessions(sessions: Iterable[Session], live_servers: Set[str], keep: Keep, now: float) -> list[Object]:
    """Return the sessions of dead servers; a live server deletes its own."""
    return [
        session
        for session in sessions
        if (age := now - session.meta.created_at) > _DAY
        or (age > keep.session_seconds and session.spec.server not in live_servers)
    ]


S = TypeVar("S", Lease, Server)


def dead_servers(leases: Iterable[S], unchanged_seconds: Mapping[str, float], keep: Keep) -> list[S]:
    """Return the leases that expired; `unchanged_seconds`: seconds since each lease was last renewed."""
    return [
        lease
        for lease in leases
        if unchanged_seconds.get(lease.meta.name, 0.0) > max(keep.server_seconds, 3 * lease.spec.seconds)
    ]


def orphaned_hearings(
    hearings: Iterable[HeartbeatSummary | UsageSummary],
    servers: Set[str],
    first_seen_seconds: Mapping[str, float],
    keep: Keep,
) -> list[Object]:
    """Return the heartbeat summaries and usage tallies of servers that have had no lease for a while."""
    return [
        each
        for each in hearings
        if (each.server if isinstance(each, UsageSummary) else each.meta.name) not in servers
        and first_seen_seconds.get(each.meta.name, 0.0) > keep.server_seconds
    ]


def concerned(releases: Iterable[Release], workloads: Mapping[tuple[str, str], Workload]) -> set[tuple[str, str]]:
    """Return the workloads that ended or were deleted: only their instances can be garbage."""
    over = {owner for owner, each in workloads.items() if ended(each)}
    owners = {(each.meta.namespace, each.spec.workload) for each in releases}
    return over | (owners - workloads.keys())


def finished_instances(
    instances: Sequence[Instance], workloads: Mapping[tuple[str, str], Workload], keep: Keep, now: float
) -> Steps[list[Object]]:
    """Return the old instances of ended batches; a running batch needs its instances to know what is done."""
    over = {owner for owner, each in workloads.items() if ended(each)}
    if not over:
        return []
    by_batch: dict[tuple[str, str], list[Instance]] = {}
    for piece in pieces(instances):
        for each in piece:
            owner = (each.meta.namespace, each.spec.workload)
            if owner in over and each.phase.over:
                by_batch.setdefault(owner, []).append(each)
        yield 3 * len(piece)
    found: list[Object] = []
    for members in by_batch.values():
        found += yield from _old_instances(members, keep, now)
    return found


def ended(workload: Workload) -> bool:
    """Return whether no instance of the batch runs again; the instances of a batch on every node are its record."""
    spec = workload.spec
    goes_on = spec.per_node and not spec.run_of
    return spec.type == "batch" and not goes_on and workload.status.phase in {"Succeeded", "Failed"}


def _old_instances(instances: Sequence[Instance], keep: Keep, now: float) -> Steps[list[Object]]:
    ranked = yield from ordered(instances, key=lambda each: (each.phase is not Phase.FAILED, -each.status.since))
    kept, rest = ranked[: keep.finished_most], ranked[keep.finished_most :]
    return [*(each for each in kept if each.status.since < now - keep.finished_seconds), *rest]


def orphaned_releases(
    releases: Iterable[Release], workloads: Set[tuple[str, str]], instances: Sequence[Instance]
) -> Steps[list[Object]]:
    """Return the releases of deleted workloads without instances."""
    alone = [each for each in releases if (each.meta.namespace, each.spec.workload) not in workloads]
    if not alone:
        return []
    owners = yield from chosen(
        instances, lambda piece: {(each.meta.namespace, each.spec.workload) for each in piece}, each=2
    )
    in_use = set(owners)
    return [each for each in alone if (each.meta.namespace, each.spec.workload) not in in_use]
