"""Plan for a drained node: which instances move or stop, what blocks the others, and the progress."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.controllers.draft import Draft
from mandor.controllers.group_name import GroupName, group_of
from mandor.lib.quantity import Seconds
from mandor.lib.steps import Steps, at_once, pieces
from mandor.model.instance import Instance, Move
from mandor.model.node import Drain, DrainPhase, DrainStatus, Node
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.budgets import may_stop
from mandor.placement.movable import stops_first

REASONS_MOST = 5
"""Blocking reasons in the status, most frequent first."""
REASON_MOST = 300


@dataclass(frozen=True, slots=True)
class DrainInputs:
    node: Node
    here: Sequence[Instance]
    """Instances on the node."""
    workload: Callable[[Instance], Workload | None]
    bound_to_node: Callable[[Instance], bool] = replicas.never_bound


@dataclass(slots=True)
class Groups:
    """State of the groups whose instances leave, shared by all nodes that are drained together."""

    members: Callable[[GroupName], Sequence[Instance]]
    taken: Counter[GroupName] = field(default_factory=Counter)
    """Disruptions of this plan, by group, counted against the budget."""
    _replacements: dict[GroupName, dict[str, Instance]] = field(default_factory=dict)
    _serving: dict[GroupName, int] = field(default_factory=dict)

    def look(self, name: GroupName) -> Steps[None]:
        """Index all instances of a group in small steps; call it before the other methods."""
        if name in self._replacements:
            return
        replacements, serving = dict[str, Instance](), 0
        for piece in pieces(self.members(name)):
            replacements.update([(each.spec.instead_of, each) for each in piece if each.spec.instead_of])
            serving += sum(map(replicas.serving, piece))
            yield 3 * len(piece)
        self._replacements[name], self._serving[name] = replacements, serving

    def replacement(self, name: GroupName, each: Instance) -> Instance | None:
        """Return the instance that was created to replace this one."""
        at_once(self.look(name))
        return self._replacements[name].get(each.meta.uid)

    def may_go(self, name: GroupName, workload: Workload, each: Instance) -> bool:
        at_once(self.look(name))
        left = may_stop(workload.spec, name.group, self._serving[name])
        return left is None or not replicas.serving(each) or left > self.taken[name]


@dataclass(slots=True)
class _Count:
    left: int = 0
    moving: int = 0
    waiting: Counter[str] = field(default_factory=Counter)


def plan_drain(seen: DrainInputs, drain: Drain, groups: Groups, now: float) -> Draft:
    draft = Draft()
    before = seen.node.status.drain
    if before is not None and drain.since and before.since != drain.since:
        before = None  # the status is that of an earlier drain
    since = drain.since or (before.since if before is not None else now)
    ends = since + drain.deadline if drain.deadline is not None else None
    late = ends is not None and now >= ends
    if ends is not None and not late:
        draft.again(ends - now)
    here = [each for each in seen.here if each.phase.placed]
    leaving = _Leaving(
        draft, seen, drain, groups, late=late, now=now, last=all(_is_daemon(seen, each) for each in here)
    )
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
        _record_event(draft, seen.node, status, drain, now)
    return draft


def end_drain(draft: Draft, node: Node) -> None:
    """End the drain of a node."""
    draft.put(node.changed(status=replace(node.status, drain=None)))
    draft.note(
        node,
        "DrainEnded",
        "drain ended; the node stays cordoned" if node.closed else "drain ended; the node accepts new instances",
    )


def stay(draft: Draft, instance: Instance) -> None:
    """Withdraw the order to leave the node."""
    draft.put(instance.changed(spec=replace(instance.spec, move=None)))


def must_leave(instance: Instance) -> bool:
    """Return whether the instance has an order to leave its node for any other."""
    return instance.spec.move is not None and not instance.spec.move.to


class _Leaving:
    def __init__(
        self,
        draft: Draft,
        seen: DrainInputs,
        drain: Drain,
        groups: Groups,
        *,
        late: bool,
        now: float,
        last: bool,
    ) -> None:
        """`last`: only daemons are left, so they may stop now."""
        self._draft, self._seen, self._now, self._last = draft, seen, now, last
        self._late, self._groups = late, groups
        self._forced = drain.force and (late or drain.deadline is None)
        self._reason = f"{seen.node.meta.name} is drained"

    def send(self, each: Instance) -> str:
        """Order the instance to leave; return what blocks it, empty if nothing does."""
        if each.spec.stop is not None:
            return ""
        daemon = _is_daemon(self._seen, each)
        if daemon and not self._last:
            return f"{group_of(each)}: daemons stop last"
        if self._forced or daemon:
            self._stop(each)
            return ""
        workload = self._seen.workload(each)
        if workload is None or each.spec.group not in workload.spec.groups:
            return ""  # the workload controller stops instances of a deleted workload or group
        if self._seen.bound_to_node(each):
            return f"{group_of(each)}: its data ({', '.join(each.spec.volumes)}) is on this node"
        if workload.spec.type == "batch":
            return self._send_batch(each, workload)
        return self._send_service(each, workload)

    def _stop(self, each: Instance) -> None:
        self._draft.put(each.stopping(self._reason, at=self._now))

    def _send_batch(self, each: Instance, workload: Workload) -> str:
        name = group_of(each)
        if not self._late:
            return f"{name}: batch runs to completion"
        if not self._groups.may_go(name, workload, each):
            return _budget(name, workload)
        self._groups.taken[name] += replicas.serving(each)
        self._stop(each)
        return ""

    def _send_service(self, each: Instance, workload: Workload) -> str:
        name, move = group_of(each), each.spec.move
        if move is None:
            self._order(each, workload)
            return ""
        if move.to or not replicas.serving(each):
            return ""
        successor = self._groups.replacement(name, each)
        if (successor is None and move.first == "stop") or (successor is not None and replicas.serving(successor)):
            return "" if self._groups.may_go(name, workload, each) else _budget(name, workload)
        if successor is None:
            return f"{name}: waiting for other instances of the group to move first"
        if successor.phase is Phase.PENDING and successor.status.message:
            return f"{name}: no node for the replacement {successor.meta.name}: {successor.status.message}"
        if successor.phase.over:
            return f"{name}: the replacement {successor.meta.name} ended: {replicas.shown_end(successor)}"
        return ""

    def _order(self, each: Instance, workload: Workload) -> None:
        first: Literal["start", "stop"] = "stop" if stops_first(workload.spec.groups[each.spec.group]) else "start"
        order = Move(reason=self._reason, at=self._now, first=first)
        self._draft.put(each.changed(spec=replace(each.spec, move=order)))


def _is_daemon(seen: DrainInputs, each: Instance) -> bool:
    """Return whether it belongs to its node and never ends by itself; a batch on every node runs to completion."""
    workload = seen.workload(each) if each.spec.home else None
    return bool(each.spec.home) and (workload is None or workload.spec.type != "batch")


def _budget(name: GroupName, workload: Workload) -> str:
    spec, group = workload.spec, workload.spec.groups[name.group]
    disruption = group.disruption
    if (spec.type == "batch" or stops_first(group)) and disruption.most_unavailable(spec.together(name.group)) == 0:
        return f"{name}: blocked by its disruption budget (max_unavailable 0, and no replacement can start first)"
    if group.update.order == "stop-first":
        return f"{name}: waiting for its update budget (order stop-first, max_unavailable {group.update_room()[1]})"
    return f"{name}: waiting for its disruption budget (max_unavailable {disruption.max_unavailable})"


def _status(before: DrainStatus | None, count: _Count, since: float, *, late: bool) -> DrainStatus:
    phase: DrainPhase = "Drained" if not count.left else "Late" if late else "Draining" if count.moving else "Waiting"
    reasons = (f"{many} of {why}"[:REASON_MOST] for why, many in count.waiting.most_common(REASONS_MOST))
    return DrainStatus(
        phase=phase,
        since=since,
        total=max(before.total if before is not None else 0, count.left),
        left=count.left,
        moving=count.moving,
        waiting=tuple(reasons),
    )


def _record_event(draft: Draft, node: Node, status: DrainStatus, drain: Drain, now: float) -> None:
    gone = f"{status.total - status.left} of {status.total} instances have left the node"
    why = f"; {'; '.join(status.waiting)}" if status.waiting else ""
    if status.phase == "Drained":
        took = Seconds(round(now - status.since))
        draft.note(node, "Drained", f"drained: {status.total} instances left in {took}" if status.total else "drained")
    elif status.phase == "Draining":
        draft.note(node, "Draining", f"{gone}{why}")
    elif status.phase == "Late":
        draft.note(node, "DrainLate", f"the deadline of {drain.deadline} passed: {gone}{why}", warning=True)
    else:
        draft.note(node, "DrainWaits", f"{gone}{why}", warning=True)
