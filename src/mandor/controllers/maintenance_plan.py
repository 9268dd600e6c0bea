"""Plan for a pool's maintenance: which nodes are drained while a window is open, and when they are released."""

from collections.abc import Sequence
from functools import lru_cache

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.lib.cron import Cron
from mandor.model.node import Drain, Maintenance, Node, NodePhase
from mandor.model.pool import NodePool, NodePoolStatus, Window

GRACE_SECONDS = 120.0
"""Seconds after the drain deadline that a node gets for instances that stop last."""
PLAN_SECONDS = 3600.0
"""Longest wait in seconds, because clocks and time zones can change."""


@lru_cache(maxsize=256)
def _times(cron: str, timezone: str) -> Cron:
    return Cron([cron], timezone)


def open_window(pool: NodePool, now: float) -> tuple[Window, float] | None:
    """Return the open window and when it opened; no other window opens before it closes."""
    for at in (pool.status.opened_at, now):
        for window in pool.spec.maintenance:
            opened = _times(window.cron, window.timezone).latest(at) if at else None
            if opened is not None and at in {opened, now} and now < opened + window.duration:
                return window, opened
    return None


def next_window(pool: NodePool, now: float) -> float:
    """Return when the next window opens; 0: never."""
    found = [_times(each.cron, each.timezone).after(now) for each in pool.spec.maintenance]
    return min((each for each in found if each is not None), default=0.0)


def plan_maintenance(pool: NodePool, nodes: Sequence[Node], now: float) -> Draft:
    """Plan the maintenance of a pool; `nodes` are the nodes of the pool."""
    draft = Draft()
    found = open_window(pool, now)
    if found is None:
        for node in nodes:
            if node.status.maintenance is not None:
                end_maintenance(draft, node, "the maintenance window closed")
        status = replace(pool.status, opened_at=0.0, until=0.0, next_at=next_window(pool, now))
    else:
        status = _Turns(draft, pool, *found, now).go_on(nodes)
    for at in (status.next_at, status.until):
        if at > now:
            draft.again(min(at - now, PLAN_SECONDS))
    if status != pool.status:
        draft.put(pool.changed(status=status))
    return draft


def end_maintenance(draft: Draft, node: Node, why: str) -> None:
    draft.put(node.changed(status=replace(node.status, maintenance=None)))
    draft.note(node, "MaintenanceOver", f"{why}: the node accepts new instances again")


class _Turns:
    """One plan for an open window."""

    def __init__(self, draft: Draft, pool: NodePool, window: Window, opened: float, now: float) -> None:
        self._draft, self._pool, self._window, self._opened, self._now = draft, pool, window, opened, now
        self._until = opened + window.duration
        same = pool.status.opened_at == opened
        self._done = list(pool.status.done) if same else []
        self._left_out = list(pool.status.left_out) if same else []
        if not same:
            draft.note(pool, "MaintenanceWindow", f"a maintenance window of {window.duration} opened")

    def go_on(self, nodes: Sequence[Node]) -> NodePoolStatus:
        busy = 0
        for node in nodes:
            turn = node.status.maintenance
            if turn is not None and self._goes_on(node, turn):
                busy += 1
        for node in sorted(nodes, key=lambda each: each.meta.name):
            if busy < self._window.at_once and self._may_begin(node):
                self._begin(node)
                busy += 1
        return replace(
            self._pool.status,
            opened_at=self._opened,
            until=self._until,
            done=tuple(self._done),
            left_out=tuple(self._left_out),
            next_at=next_window(self._pool, self._now),
        )

    def _goes_on(self, node: Node, turn: Maintenance) -> bool:
        if turn.window != self._opened:
            end_maintenance(self._draft, node, "the maintenance window closed")
            return False
        if node.spec.maintained == self._opened:
            self._end(node, "the maintenance was ended by a user")
            return False
        if not turn.empty_since:
            return self._empties(node, turn)
        if self._now >= turn.empty_since + self._window.each:
            self._end(node, "the maintenance time is over")
            return False
        self._draft.again(turn.empty_since + self._window.each - self._now)
        return True

    def _empties(self, node: Node, turn: Maintenance) -> bool:
        progress = node.status.drain
        mine = progress is not None and progress.since == turn.drain.since
        if mine and progress is not None and progress.phase == "Drained":
            until = min(self._now + self._window.each, self._until)
            begun = replace(turn, empty_since=self._now, until=until)
            self._draft.put(node.changed(status=replace(node.status, maintenance=begun)))
            self._draft.note(
                node, "UnderMaintenance", f"the node is drained and under maintenance for {self._window.each}"
            )
            self._draft.again(until - self._now)
            return True
        late = turn.drain.since + self._window.drain + GRACE_SECONDS
        if self._now < late:
            self._draft.again(late - self._now)
            return True
        why = "; ".join(progress.waiting) if progress is not None else "no instance left the node"
        self._left_out.append(node.meta.name)
        self._end(node, f"the node could not be drained ({why})", warning=True)
        return False

    def _end(self, node: Node, why: str, *, warning: bool = False) -> None:
        self._done.append(node.meta.name)
        if warning:
            self._draft.note(node, "MaintenanceLeftOut", why, warning=True)
        end_maintenance(self._draft, node, why)

    def _may_begin(self, node: Node) -> bool:
        """Return whether the node can start its maintenance, and enough of the window is left."""
        return (
            node.status.maintenance is None
            and node.meta.name not in self._done
            and node.spec.maintained != self._opened
            and not node.closed
            and node.status.phase is NodePhase.READY
            and self._until - self._now >= self._window.each
        )

    def _begin(self, node: Node) -> None:
        order = Drain(deadline=self._window.drain, force=self._window.force, since=self._now)
        turn = Maintenance(window=self._opened, drain=order, until=self._until)
        self._draft.put(node.changed(status=replace(node.status, maintenance=turn)))
        self._draft.note(node, "Maintenance", f"draining for the maintenance window of pool {self._pool.meta.name}")
