"""Plan for a rebalance: which of its moves starts now, the progress of the others, and the next search."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance, Move
from mandor.model.rebalance import PlannedMove, Rebalance, RebalanceStatus

PLAN_SECONDS = 2.0  # between two plans while instances move
WAIT_SECONDS = 900.0
"""Seconds after which a move that could not start is cancelled, because its gain is outdated."""
FINAL = frozenset({"Moved", "CalledOff"})


class RebalanceInputs:
    """The instances that are to move, and their replacements."""

    def __init__(
        self,
        instance: Callable[[PlannedMove], Instance | None],
        replacement: Callable[[PlannedMove], Instance | None],
        ready: Callable[[Instance], bool],
    ) -> None:
        """`instance`: finds it by its uid. `replacement`: finds its replacement. `ready`: whether it may move now."""
        self.instance, self.replacement, self.ready = instance, replacement, ready


def due(order: Rebalance, now: float) -> bool:
    """Return whether it is time to search for moves."""
    status = order.status
    return status.phase == "Planning" or (status.phase == "Resting" and now >= _next_at(order))


def found(draft: Draft, order: Rebalance, moves: Sequence[PlannedMove], now: float, problem: str = "") -> None:
    status = replace(order.status, phase="Moving", planned_at=now, next_at=0.0, moves=tuple(moves), message=problem)
    if not moves:
        status = _at_rest(order, status, problem or "no move gains enough points")
    else:
        gain = sum(each.gain for each in moves)
        draft.note(order, "Rebalancing", f"moving {len(moves)} instances gains {gain} points")
    draft.put(order.changed(status=status))
    draft.again(0.0)


def plan_rebalance(order: Rebalance, seen: RebalanceInputs, now: float) -> Draft:
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
        assert instance is not None  # otherwise the move is cancelled already
        owner = each.namespace, each.workload
        if under_way < order.spec.at_once and owner not in busy and seen.ready(instance):
            _send(draft, order, instance, each, now)
            under_way += 1
            busy.add(owner)
        elif now >= status.planned_at + WAIT_SECONDS:
            moves[place] = replace(each, state="CalledOff", why=f"the move did not start within {WAIT_SECONDS:g} s")
    after = replace(status, moves=tuple(moves))
    if all(each.state in FINAL for each in moves):
        after = _finished(draft, order, after)
    if after != status:
        draft.put(order.changed(status=after))
    draft.again(PLAN_SECONDS)
    return draft


def cancelled(draft: Draft, instance: Instance) -> None:
    """Cancel the move of an instance, unless its replacement has already taken over."""
    if instance.spec.stop is None:
        draft.put(instance.changed(spec=replace(instance.spec, move=None)))


def _next_at(order: Rebalance) -> float:
    every = order.spec.every
    return order.status.planned_at + every if every is not None else 0.0


def _followed(order: Rebalance, move: PlannedMove, seen: RebalanceInputs) -> PlannedMove:
    """Return the move with its current state, which the instance itself shows."""
    if move.state in FINAL:
        return move
    instance = seen.instance(move)
    if instance is None or instance.phase.over:
        if (replacement := seen.replacement(move)) is not None and replacement.spec.node == move.to:
            return replace(move, state="Moved")
        return replace(move, state="CalledOff", why="the instance ended")
    sent = instance.spec.move is not None and instance.spec.move.by == order.meta.name
    if sent or (move.state == "Moving" and instance.spec.stop is not None):
        return replace(move, state="Moving")
    if move.state == "Moving" or instance.spec.node != move.source:
        return replace(move, state="CalledOff", why="the move was cancelled; see the events of the instance")
    return move


def _send(draft: Draft, order: Rebalance, instance: Instance, move: PlannedMove, now: float) -> None:
    reason = f"{move.to} scores {move.gain} points higher ({move.because})"
    sent = Move(to=move.to, reason=reason, at=now, by=order.meta.name)
    draft.put(instance.changed(spec=replace(instance.spec, move=sent)))
    draft.note(instance, "Moving", f"moving from {instance.spec.node} to {move.to}: {reason}")


def _finished(draft: Draft, order: Rebalance, status: RebalanceStatus) -> RebalanceStatus:
    moved = [each for each in status.moves if each.state == "Moved"]
    off = len(status.moves) - len(moved)
    message = f"moved {len(moved)} instances, gaining {sum(each.gain for each in moved)} points"
    message += f"; {off} moves cancelled" if off else ""
    draft.note(order, "Rebalanced", message, warning=bool(off and not moved))
    return _at_rest(order, replace(status, moved=status.moved + len(moved)), message)


def _at_rest(order: Rebalance, status: RebalanceStatus, message: str) -> RebalanceStatus:
    every = order.spec.every
    next_at = status.planned_at + every if every is not None else 0.0
    return replace(status, phase="Resting" if next_at else "Done", next_at=next_at, message=message)
