"""Plan for nodes with a NoExecute taint: who has to leave now, and who later."""

from collections.abc import Callable, Sequence

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance
from mandor.model.node import Node, Taint
from mandor.model.placement import Toleration

STOPS_MOST = 100
"""So many of a node are told to leave in one go; the others come next."""

Tolerations = Callable[[Instance], Sequence[Toleration] | None]
"""What an instance tolerates; None: nobody knows yet."""


def drives_off(node: Node) -> bool:
    return any(each.effect == "NoExecute" for each in node.spec.taints)


def plan_taints(node: Node, here: Sequence[Instance], tolerations: Tolerations, now: float) -> Draft:
    """Nobody's budget is asked: whoever sets such a taint says that the node is unfit."""
    draft, stops = Draft(), 0
    for each in here:
        tolerate = tolerations(each) if each.phase.placed and each.spec.stop is None else None
        if tolerate is None:
            continue
        taint, seconds = first_to_drive_off(node.spec.taints, tolerate, each, now)
        if taint is None:
            continue
        if seconds > 0:
            draft.again(seconds)
        elif stops == STOPS_MOST:
            draft.again(0.0)
        else:
            stops += 1
            why = f"{node.meta.name} has the taint {taint}"
            draft.put(each.stopping(why, at=now))
            draft.note(each, "Evicted", f"{why}, and it does not tolerate that (any longer)", warning=True)
    return draft


def first_to_drive_off(
    taints: Sequence[Taint], tolerate: Sequence[Toleration], instance: Instance, now: float
) -> tuple[Taint | None, float]:
    """The taint that has it leave first, and in how many seconds; None: none does."""
    found: tuple[Taint | None, float] = (None, float("inf"))
    for taint in taints:
        if taint.effect == "NoExecute":
            seconds = _seconds_left(taint, tolerate, instance, now)
            if seconds is not None and seconds < found[1]:
                found = (taint, seconds)
    return found


def _seconds_left(taint: Taint, tolerate: Sequence[Toleration], instance: Instance, now: float) -> float | None:
    """As in Kubernetes, the shortest of all tolerations that fit counts; it runs since the taint and the instance are
    both there."""
    fitting = [each for each in tolerate if each.covers(taint)]
    if not fitting:
        return 0.0
    times = [each.seconds for each in fitting if each.seconds is not None]
    if not times:
        return None
    begun = max(taint.since, instance.status.started_at or now)
    return max(0.0, begun + min(times) - now)
