"""Plan for a roll-out: its target, progress, failure and status message."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.controllers.daemon_plan import at_home, no_room
from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView
from mandor.controllers.rollout_message import describe, trouble
from mandor.controllers.update_plan import Step
from mandor.lib.quantity import Seconds
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, pieces
from mandor.model.group import Group
from mandor.model.instance import Instance
from mandor.model.rollout import PROVEN_MOST, GroupRollout, Rollout
from mandor.model.workload import Release, Workload

Members = Mapping[str, Sequence[Instance]]


@dataclass(slots=True)
class _View:
    """State of one group in this plan."""

    group: Group
    state: GroupRollout
    late: list[Instance]
    """Some unhealthy instances of the target; the worst one is among them."""
    mixed: bool
    """Whether instances of another release exist."""
    canaries: int = 0
    """Number of canaries that wait for promotion."""
    held: bool = False
    """Whether the group waits for its dependencies."""
    daemons: bool = False
    unschedulable: int = 0
    """Number of daemons whose nodes have no room."""

    @property
    def done(self) -> bool:
        """Whether all instances are updated and healthy; for daemons at least one must be healthy."""
        state = self.state
        unproven = self.daemons and not state.healthy
        return not self.mixed and not unproven and state.updated == state.healthy + self.unschedulable == state.wanted

    @property
    def idle(self) -> bool:
        """Whether the group waits for dependencies or matching nodes; its deadline does not run."""
        return self.held or (self.daemons and not self.state.wanted)

    @property
    def waits(self) -> bool:
        """Whether its canaries are healthy and wait for promotion."""
        return bool(self.canaries) and self.state.healthy >= self.canaries


def plan_rollout(
    draft: Draft,
    workload: Workload,
    current: Release,
    releases: Mapping[str, Release],
    members: Members,
    waiting: Set[str],
    cluster: ClusterView,
) -> Steps[tuple[Rollout, dict[str, Step]]]:
    """Return the state of the roll-out and the limits of each group. `current`: the release of the current template;
    `waiting`: groups that wait for their dependencies."""
    before = workload.status.rollout
    rollout = before if before is not None and before.release == current.meta.name else None
    if rollout is None:
        rollout = _begun(draft, workload, current, cluster.now)
    if workload.spec.rollout.aborted == rollout.release and rollout.phase in {"Progressing", "Waiting", "Paused"}:
        rollout = _failed(draft, workload, rollout, releases, "aborted by a user", back=True, now=cluster.now)
    if rollout.target not in releases:
        rollout = replace(rollout, target=rollout.release)
    views: dict[str, _View] = {}
    if not rollout.settled_on:
        views = yield from _views(draft, workload, rollout, releases, members, cluster)
        for name in waiting & views.keys() if rollout.target == rollout.release else ():
            views[name].held = True
        rollout, views = yield from _followed(draft, workload, rollout, releases, members, views, cluster)
        states = {} if rollout.settled_on else {name: view.state for name, view in views.items()}
        rollout = replace(rollout, groups=states)
        late = list(chain.from_iterable([view.late for view in views.values()]))
        rollout = replace(rollout, message=describe(workload, rollout, late))
    return rollout, _steps(workload, rollout, releases, views)


def _steps(
    workload: Workload, rollout: Rollout, releases: Mapping[str, Release], views: Mapping[str, _View]
) -> dict[str, Step]:
    target = releases[rollout.target]
    return {
        name: Step(
            target,
            releases,
            rollout.proven,
            canaries=views[name].canaries if name in views else 0,
            # A serving instance is not stopped for one that still waits for its dependencies.
            frozen=rollout.frozen or (name in views and views[name].held and views[name].mixed),
        )
        for name in workload.spec.groups
        if name in target.spec.groups
    }


def _begun(draft: Draft, workload: Workload, current: Release, now: float) -> Rollout:
    before, name = workload.status.rollout, current.meta.name
    if before is None:
        return Rollout(release=name, target=name, began_at=now)
    left = "" if before.phase == "Done" else f" ({before.phase})"
    why = f": {current.spec.cause}" if current.spec.cause else ""
    draft.note(workload, "RolloutStarted", f"rolling out {name}, replacing {before.release}{left}{why}")
    return Rollout(release=name, target=name, began_at=now, proven=before.proven)


# Groups.


def _views(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    releases: Mapping[str, Release],
    members: Members,
    cluster: ClusterView,
) -> Steps[dict[str, _View]]:
    target = releases[rollout.target]
    tried = any(releases[name].spec.hash == target.spec.hash for name in rollout.proven if name in releases)
    found = {}
    for name in workload.spec.groups:
        if name in target.spec.groups:
            view = found[name] = yield from _view(draft, workload, rollout, target, name, members[name], cluster)
            # A template that was healthy before needs no canaries.
            if not tried and rollout.ongoing and view.mixed and not view.state.promoted:
                _hold_canaries(draft, workload, rollout, name, view, cluster)
    return found


def _view(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    target: Release,
    name: str,
    members: Sequence[Instance],
    cluster: ClusterView,
) -> Steps[_View]:
    group = workload.spec.groups[name]
    daemons = workload.spec.type == "daemon"
    wanted, members = at_home(target, name, members, cluster) if daemons else (group.count, members)
    new = yield from chosen(members, lambda piece: [each for each in piece if each.spec.release == rollout.target])
    late = yield from _late(draft, new, group, cluster)
    before = rollout.groups.get(name, GroupRollout())
    healthy, known = len(new) - len(late), before.wanted == wanted
    state = GroupRollout(
        wanted=wanted,
        updated=len(new),
        healthy=healthy,
        best=max(healthy, before.best) if known else healthy,
        progress_at=before.progress_at if known and healthy <= before.best and before.progress_at else cluster.now,
        promoted=before.promoted,
    )
    unschedulable = sum(map(no_room, late)) if daemons else 0
    mixed = len(new) < len(members)
    worst = yield from replicas.worst_of_each(late)
    return _View(group, state, worst, mixed, daemons=daemons, unschedulable=unschedulable)


def _late(draft: Draft, new: Sequence[Instance], group: Group, cluster: ClusterView) -> Steps[list[Instance]]:
    """Return the instances that are not healthy."""
    found: list[Instance] = []
    for piece in pieces(new, FEW):
        found += [each for each in piece if not (each.status.ready and replicas.healthy(draft, each, group, cluster))]
        yield WRITTEN * len(piece)
    return found


def _hold_canaries(
    draft: Draft, workload: Workload, rollout: Rollout, name: str, view: _View, cluster: ClusterView
) -> None:
    update, canaries = view.group.update, view.group.update.canaries(view.state.wanted)
    if not canaries:
        return
    healthy = view.state.healthy >= canaries
    by_hand = workload.spec.rollout.promoted == rollout.release
    if by_hand or (healthy and (update.auto_promote or cluster.rehearsed)):
        how = "promoted by a user" if by_hand else f"{canaries} canaries are healthy"
        draft.note(workload, "RolloutPromoted", f"{rollout.release} continues in group {name}: {how}")
        view.state = replace(view.state, promoted=True, progress_at=cluster.now)
    else:
        view.canaries = canaries


# The whole.


def _followed(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    releases: Mapping[str, Release],
    members: Members,
    views: dict[str, _View],
    cluster: ClusterView,
) -> Steps[tuple[Rollout, dict[str, _View]]]:
    if all(view.done for view in views.values()):
        return _finished(draft, workload, rollout, cluster.now), views
    if workload.spec.rollout.paused and rollout.ongoing:
        if rollout.phase != "Paused":
            draft.note(workload, "RolloutPaused", f"{rollout.target}: {_progress(views)} instances updated")
        return _stop_deadlines(replace(rollout, phase="Paused"), views.values()), views
    if rollout.phase == "Paused":
        draft.note(workload, "RolloutResumed", f"{rollout.target}: {_progress(views)} instances updated")
    if rollout.frozen and rollout.phase == "Failed":
        return rollout, views
    under_way = [view for view in views.values() if not (view.done or view.waits or view.idle)]
    rollout = _stop_deadlines(rollout, [view for view in views.values() if view.waits or view.idle])
    if not under_way and rollout.phase != "Failed" and any(view.waits for view in views.values()):
        if rollout.phase != "Waiting":
            draft.note(workload, "RolloutWaiting", f"{rollout.release} is healthy and waits for promotion")
        return replace(rollout, phase="Waiting"), views
    if workload.spec.gates or not under_way:
        return _stop_deadlines(rollout, views.values()), views
    late = [view for view in under_way if cluster.now >= view.state.progress_at + view.group.update.deadline]
    if late and rollout.phase != "Failed":
        rollout = _out_of_time(draft, workload, rollout, releases, late[0], cluster)
        views = yield from _views(draft, workload, rollout, releases, members, cluster)
        return rollout, views
    return _going_on(draft, rollout, under_way, cluster), views


def _going_on(draft: Draft, rollout: Rollout, under_way: Sequence[_View], cluster: ClusterView) -> Rollout:
    if rollout.phase == "Failed":
        return rollout
    fails_at = min(view.state.progress_at + view.group.update.deadline for view in under_way)
    if fails_at != float("inf"):
        draft.again(max(fails_at - cluster.now, replicas.SOON_SECONDS))
    back = rollout.target != rollout.release
    return replace(
        rollout,
        phase="RollingBack" if back else "Progressing",
        fails_at=0.0 if fails_at == float("inf") else fails_at,
    )


def _stop_deadlines(rollout: Rollout, views: Iterable[_View]) -> Rollout:
    """Stop the deadlines of these groups; they start again when the groups continue."""
    for view in views:
        view.state = replace(view.state, progress_at=0.0)
    return replace(rollout, fails_at=0.0)


def _finished(draft: Draft, workload: Workload, rollout: Rollout, now: float) -> Rollout:
    proven = (*(name for name in rollout.proven if name != rollout.target), rollout.target)[-PROVEN_MOST:]
    first = not rollout.proven
    done = replace(rollout, ended_at=now, proven=proven, fails_at=0.0)
    if rollout.target != rollout.release:
        draft.note(workload, "RolledBack", f"rolled back to {rollout.target}: {rollout.failure}", warning=True)
        return replace(done, phase="RolledBack")
    if not first:
        draft.note(workload, "RolloutDone", f"all instances run {rollout.release} and are healthy")
    return replace(done, phase="Done", failure="")


# Failure.


def _out_of_time(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    releases: Mapping[str, Release],
    view: _View,
    cluster: ClusterView,
) -> Rollout:
    within = f"no further instance became healthy within {Seconds(view.group.update.deadline)}"
    why = f"{within}{trouble(view.late)}"
    return _failed(draft, workload, rollout, releases, why, back=view.group.update.auto_rollback, now=cluster.now)


def _failed(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    releases: Mapping[str, Release],
    why: str,
    *,
    back: bool,
    now: float,
) -> Rollout:
    """Fail the roll-out, or roll back once to the last healthy release; a rollback that fails stays failed."""
    last = next((name for name in reversed(rollout.proven) if name in releases and name != rollout.release), "")
    if rollout.target == rollout.release and back and last:
        draft.note(workload, "RollingBack", f"{rollout.release} failed, rolling back to {last}: {why}", warning=True)
        return replace(rollout, phase="RollingBack", target=last, failure=why, groups={}, fails_at=0.0)
    if rollout.target == rollout.release:
        draft.note(workload, "RolloutFailed", f"{rollout.release}: {why}", warning=True)
        return replace(rollout, phase="Failed", failure=why, ended_at=now, fails_at=0.0)
    draft.note(workload, "RolloutFailed", f"rollback to {rollout.target} failed: {why}", warning=True)
    return replace(rollout, phase="Failed", ended_at=now, fails_at=0.0)


def _progress(views: Mapping[str, _View]) -> str:
    states = [view.state for view in views.values()]
    return f"{sum(each.updated for each in states)} of {sum(each.wanted for each in states)}"
