"""Plan for a rebalance: which of its moves begins now, how far the others are, and when it looks for more."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance, Move
from mandor.model.rebalance import PlannedMove, Rebalance, RebalanceStatus

LOOK_SECONDS = 2.0
WAIT_SECONDS = 900.0
"""What could not begin so long after it was found is not worth what it was."""
FINAL = frozenset({"Moved", "CalledOff"})


class RebalanceSeen:
    """What there is of the instances that are to move."""

    def __init__(
        self,
        instance: Callable[[PlannedMove], Instance | None],
        heir: Callable[[PlannedMove], Instance | None],
        ready: Callable[[Instance], bool],
    ) -> None:
        """`instance`: the very one, by its uid; `heir`: who is to take its place, or has; `ready`: it may move now."""
        self.instance, self.heir, self.ready = instance, heir, ready


def due(order: Rebalance, now: float) -> bool:
    """It is time to look for moves."""
    status = order.status
    return status.phase == "Planning" or (status.phase == "Resting" and now >= _next_at(order))


def found(draft: Draft, order: Rebalance, moves: Sequence[PlannedMove], now: float, problem: str = "") -> None:
    status = replace(order.status, phase="Moving", planned_at=now, next_at=0.0, moves=tuple(moves), message=problem)
    if not moves:
        status = _at_rest(order, status, problem or "nothing would gain enough by moving")
    else:
        gain = sum(each.gain for each in moves)
        draft.note(order, "Rebalancing", f"{len(moves)} would gain {gain} points by moving")
    draft.put(order.changed(status=status))
    draft.again(0.0)


def plan_rebalance(order: Rebalance, seen: RebalanceSeen, now: float) -> Draft:
    draft, status = Draft(), order.status
    if status.phase != "Moving":
        next_at = _next_at(order)
        if next_at != status.next_at or (status.phase == "Done" and next_at):
            phase = "Resting" if next_at else "Done"
            draft.put(order.changed(status=replace(status, phase=phase, next_at=next_at)))
        if next_at:
            draft.again(max(0.0, next_at - now))
        return draft
    moves = [_followed(order, each, seen) for each in status.moves]
    busy = {(each.namespace, each.workload) for each in moves if each.state == "Moving"}
    under_way = sum(each.state == "Moving" for each in moves)
    for place, each in enumerate(moves):
        if each.state != "Waiting":
            continue
        instance = seen.instance(each)
        assert instance is not None  # else it had been called off
        owner = each.namespace, each.workload
        if under_way < order.spec.at_once and owner not in busy and seen.ready(instance):
            _send(draft, order, instance, each, now)
            under_way += 1
            busy.add(owner)
        elif now >= status.planned_at + WAIT_SECONDS:
            moves[place] = replace(each, state="CalledOff", why="it could not begin in time")
    after = replace(status, moves=tuple(moves))
    if all(each.state in FINAL for each in moves):
        after = _finished(draft, order, after)
    if after != status:
        draft.put(order.changed(status=after))
    draft.again(LOOK_SECONDS)
    return draft


def cancelled(draft: Draft, instance: Instance) -> None:
    """Nobody wants it to move any more; one whose place is taken goes all the same."""
    if instance.spec.stop is None:
        draft.put(instance.changed(spec=replace(instance.spec, move=None)))


def _next_at(order: Rebalance) -> float:
    every = order.spec.every
    return order.status.planned_at + every if every is not None else 0.0


def _followed(order: Rebalance, move: PlannedMove, seen: RebalanceSeen) -> PlannedMove:
    """How far it is by now. What was ordered shows in the instance itself, whoever wrote what when."""
    if move.state in FINAL:
        return move
    instance = seen.instance(move)
    if instance is None or instance.phase.over:
        if (heir := seen.heir(move)) is not None and heir.spec.node == move.to:
            return replace(move, state="Moved")
        return replace(move, state="CalledOff", why="it ended by itself")
    sent = instance.spec.move is not None and instance.spec.move.by == order.meta.name
    if sent or (move.state == "Moving" and instance.spec.stop is not None):
        return replace(move, state="Moving")
    if move.state == "Moving" or instance.spec.node != move.source:
        return replace(move, state="CalledOff", why="it stays where it is: its events say why")
    return move


def _send(draft: Draft, order: Rebalance, instance: Instance, move: PlannedMove, now: float) -> None:
    reason = f"it stands better on {move.to}, by {move.gain} points ({move.because})"
    sent = Move(to=move.to, reason=reason, at=now, by=order.meta.name)
    draft.put(instance.changed(spec=replace(instance.spec, move=sent)))
    draft.note(instance, "Moving", f"it moves from {instance.spec.node}: {reason}")


def _finished(draft: Draft, order: Rebalance, status: RebalanceStatus) -> RebalanceStatus:
    moved = [each for each in status.moves if each.state == "Moved"]
    off = len(status.moves) - len(moved)
    said = f"{len(moved)} moved, for {sum(each.gain for each in moved)} points"
    said += f"; {off} called off" if off else ""
    draft.note(order, "Rebalanced", said, warning=bool(off and not moved))
    return _at_rest(order, replace(status, moved=status.moved + len(moved)), said)


def _at_rest(order: Rebalance, status: RebalanceStatus, message: str) -> RebalanceStatus:
    every = order.spec.every
    next_at = status.planned_at + every if every is not None else 0.0
    return replace(status, phase="Resting" if next_at else "Done", next_at=next_at, message=message)
