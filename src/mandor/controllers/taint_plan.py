"""Plan for nodes with a NoExecute taint: instances that are evicted now or later."""

from collections.abc import Callable, Sequence

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance
from mandor.model.node import Node, Taint
from mandor.model.placement import Toleration

STOPS_MOST = 100
"""Instances of a node that are evicted per plan; the others follow in the next plans."""

Tolerations = Callable[[Instance], Sequence[Toleration] | None]
"""Returns the tolerations of an instance; None: unknown yet."""


def evicts(node: Node) -> bool:
    return any(each.effect == "NoExecute" for each in node.spec.taints)


def plan_taints(node: Node, here: Sequence[Instance], tolerations: Tolerations, now: float) -> Draft:
    """Evict instances regardless of disruption budgets: the taint declares the node unfit."""
    draft, stops = Draft(), 0
    for each in here:
        tolerate = tolerations(each) if each.phase.placed and each.spec.stop is None else None
        if tolerate is None:
            continue
        taint, seconds = first_eviction(node.spec.taints, tolerate, each, now)
        if taint is None:
            continue
        if seconds > 0:
            draft.again(seconds)
        elif stops == STOPS_MOST:
            draft.again(0.0)
        else:
            stops += 1
            why = f"node {node.meta.name} has the taint {taint}"
            draft.put(each.stopping(why, at=now))
            expired = any(toleration.covers(taint) for toleration in tolerate)
            draft.note(
                each, "Evicted", f"evicted: {why}, {'toleration expired' if expired else 'not tolerated'}", warning=True
            )
    return draft


def first_eviction(
    taints: Sequence[Taint], tolerate: Sequence[Toleration], instance: Instance, now: float
) -> tuple[Taint | None, float]:
    """Return the taint that evicts the instance first, and the seconds until then; None if none does."""
    found: tuple[Taint | None, float] = (None, float("inf"))
    for taint in taints:
        if taint.effect == "NoExecute":
            seconds = _seconds_left(taint, tolerate, instance, now)
            if seconds is not None and seconds < found[1]:
                found = (taint, seconds)
    return found


def _seconds_left(taint: Taint, tolerate: Sequence[Toleration], instance: Instance, now: float) -> float | None:
    """Return the seconds until the taint evicts the instance: as in Kubernetes, the shortest matching toleration
    counts, from when both the taint and the instance exist."""
    fitting = [each for each in tolerate if each.covers(taint)]
    if not fitting:
        return 0.0
    times = [each.seconds for each in fitting if each.seconds is not None]
    if not times:
        return None
    begun = max(taint.since, instance.status.started_at or now)
    return max(0.0, begun + min(times) - now)
