"""Plan for a node that is drained: who leaves how, what the others wait for, and how far it is."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from mandor.controllers import slot
from mandor.controllers.draft import Draft
from mandor.controllers.residents import GroupName, group_of
from mandor.lib.quantity import Seconds
from mandor.lib.steps import Steps, at_once, pieces
from mandor.model.instance import Instance, Move
from mandor.model.node import Drain, DrainPhase, DrainStatus, Node
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.budgets import may_stop
from mandor.placement.movable import stops_first

REASONS_MOST = 5
"""So many reasons to wait are told, the most frequent first."""
REASON_MOST = 300


@dataclass(frozen=True, slots=True)
class DrainSeen:
    node: Node
    here: Sequence[Instance]
    """Those on the node."""
    workload: Callable[[Instance], Workload | None]
    rooted: Callable[[Instance], bool] = slot.goes_anywhere


@dataclass(slots=True)
class Groups:
    """What is known of the groups whose instances leave, for all nodes that are drained together."""

    members: Callable[[GroupName], Sequence[Instance]]
    taken: Counter[GroupName] = field(default_factory=Counter)
    """What was taken of budgets just now."""
    _heirs: dict[GroupName, dict[str, Instance]] = field(default_factory=dict)
    _serving: dict[GroupName, int] = field(default_factory=dict)

    def look(self, name: GroupName) -> Steps[None]:
        """At all of a group, which may be very many, before it is asked about."""
        if name in self._heirs:
            return
        heirs, serving = dict[str, Instance](), 0
        for piece in pieces(self.members(name)):
            heirs.update([(each.spec.instead_of, each) for each in piece if each.spec.instead_of])
            serving += sum(map(slot.serving, piece))
            yield 3 * len(piece)
        self._heirs[name], self._serving[name] = heirs, serving

    def heir(self, name: GroupName, each: Instance) -> Instance | None:
        """Who takes its place."""
        at_once(self.look(name))
        return self._heirs[name].get(each.meta.uid)

    def may_go(self, name: GroupName, workload: Workload, each: Instance) -> bool:
        at_once(self.look(name))
        left = may_stop(workload.spec, name.group, self._serving[name])
        return left is None or not slot.serving(each) or left > self.taken[name]


@dataclass(slots=True)
class _Count:
    left: int = 0
    moving: int = 0
    waiting: Counter[str] = field(default_factory=Counter)


def plan_drain(seen: DrainSeen, drain: Drain, groups: Groups, now: float) -> Draft:
    draft = Draft()
    before = seen.node.status.drain
    if before is not None and drain.since and before.since != drain.since:
        before = None  # that was another one
    since = drain.since or (before.since if before is not None else now)
    ends = since + drain.deadline if drain.deadline is not None else None
    late = ends is not None and now >= ends
    if ends is not None and not late:
        draft.again(ends - now)
    here = [each for each in seen.here if each.phase.placed]
    leaving = _Leaving(draft, seen, drain, groups, late=late, now=now, last=all(each.spec.home for each in here))
    count = _Count(left=len(here))
    for each in here:
        why = leaving.send(each)
        if why:
            count.waiting[why] += 1
        else:
            count.moving += 1
    status = _status(before, count, since, late=late)
    if status != seen.node.status.drain:
        draft.put(seen.node.changed(status=replace(seen.node.status, drain=status)))
    if before is None or before.phase != status.phase:
        _tell(draft, seen.node, status, drain, now)
    return draft


def end_drain(draft: Draft, node: Node) -> None:
    """Nobody wants it empty any more."""
    draft.put(node.changed(status=replace(node.status, drain=None)))
    draft.note(node, "DrainEnded", "it stays cordoned" if node.closed else "it takes new work again")


def stay(draft: Draft, instance: Instance) -> None:
    """It need not leave its node any more."""
    draft.put(instance.changed(spec=replace(instance.spec, move=None)))


def must_leave(instance: Instance) -> bool:
    """It was told to leave its node, for wherever there is room."""
    return instance.spec.move is not None and not instance.spec.move.to


class _Leaving:
    def __init__(
        self,
        draft: Draft,
        seen: DrainSeen,
        drain: Drain,
        groups: Groups,
        *,
        late: bool,
        now: float,
        last: bool,
    ) -> None:
        """`last`: only daemons are left, and it is their turn."""
        self._draft, self._seen, self._now, self._last = draft, seen, now, last
        self._late, self._groups = late, groups
        self._forced = drain.force and (late or drain.deadline is None)
        self._reason = f"{seen.node.meta.name} is drained"

    def send(self, each: Instance) -> str:
        """Have it leave; what it waits for, empty if it is on its way."""
        if each.spec.stop is not None:
            return ""
        if each.spec.home and not self._last:
            return f"{group_of(each)}: daemons go when all others have"
        if self._forced or each.spec.home:
            self._stop(each)
            return ""
        workload = self._seen.workload(each)
        if workload is None or each.spec.group not in workload.spec.groups:
            return ""  # whoever sees that it is gone stops them
        if self._seen.rooted(each):
            return f"{group_of(each)}: its data ({', '.join(each.spec.volumes)}) is on this node"
        if workload.spec.type == "batch":
            return self._send_batch(each, workload)
        return self._send_service(each, workload)

    def _stop(self, each: Instance) -> None:
        self._draft.put(each.stopping(self._reason, at=self._now))

    def _send_batch(self, each: Instance, workload: Workload) -> str:
        name = group_of(each)
        if not self._late:
            return f"{name}: runs to its end"
        if not self._groups.may_go(name, workload, each):
            return _budget(name, workload)
        self._groups.taken[name] += slot.serving(each)
        self._stop(each)
        return ""

    def _send_service(self, each: Instance, workload: Workload) -> str:
        name, move = group_of(each), each.spec.move
        if move is None:
            self._order(each, workload)
            return ""
        if move.to or not slot.serving(each):
            return ""
        heir = self._groups.heir(name, each)
        if (heir is None and move.first == "stop") or (heir is not None and slot.serving(heir)):
            return "" if self._groups.may_go(name, workload, each) else _budget(name, workload)
        if heir is None:
            return f"{name}: others of it go first"
        if heir.phase is Phase.PENDING and heir.status.message:
            return f"{name}: there is no place for {heir.meta.name}: {heir.status.message}"
        if heir.phase.over:
            return f"{name}: {heir.meta.name} ended instead of taking its place: {slot.shown_end(heir)}"
        return ""

    def _order(self, each: Instance, workload: Workload) -> None:
        first: Literal["start", "stop"] = "stop" if stops_first(workload.spec.groups[each.spec.group]) else "start"
        order = Move(reason=self._reason, at=self._now, first=first)
        self._draft.put(each.changed(spec=replace(each.spec, move=order)))


def _budget(name: GroupName, workload: Workload) -> str:
    spec, group = workload.spec, workload.spec.groups[name.group]
    disruption = group.disruption
    if (spec.type == "batch" or stops_first(group)) and disruption.most_unavailable(spec.together(name.group)) == 0:
        return f"{name}: its budget lets none go, ever (max_unavailable 0, and it cannot start another one first)"
    if group.update.order == "stop-first":
        return f"{name}: it stops first, and no more of it may be away now (max_unavailable {group.update_room()[1]})"
    return f"{name}: its budget lets no more go now (max_unavailable {disruption.max_unavailable})"


def _status(before: DrainStatus | None, count: _Count, since: float, *, late: bool) -> DrainStatus:
    phase: DrainPhase = "Drained" if not count.left else "Late" if late else "Draining" if count.moving else "Waiting"
    told = (f"{many} of {why}"[:REASON_MOST] for why, many in count.waiting.most_common(REASONS_MOST))
    return DrainStatus(
        phase=phase,
        since=since,
        total=max(before.total if before is not None else 0, count.left),
        left=count.left,
        moving=count.moving,
        waiting=tuple(told),
    )


def _tell(draft: Draft, node: Node, status: DrainStatus, drain: Drain, now: float) -> None:
    gone = f"{status.total - status.left} of {status.total} have left"
    why = f"; {'; '.join(status.waiting)}" if status.waiting else ""
    if status.phase == "Drained":
        took = Seconds(round(now - status.since))
        draft.note(
            node, "Drained", f"it is empty: {status.total} have left in {took}" if status.total else "it is empty"
        )
    elif status.phase == "Draining":
        draft.note(node, "Draining", f"{gone}{why}")
    elif status.phase == "Late":
        draft.note(node, "DrainLate", f"its deadline of {drain.deadline} has passed: {gone}{why}", warning=True)
    else:
        draft.note(node, "DrainWaits", f"{gone}{why}", warning=True)
