"""Plan for a roll-out as a whole: where it leads, how far it is, when it has failed, and what people are told."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain

from msgspec.structs import replace

from mandor.controllers import slot
from mandor.controllers.daemon_plan import at_home, no_room
from mandor.controllers.draft import Draft
from mandor.controllers.rollout_story import told, trouble
from mandor.controllers.slot import World
from mandor.controllers.update_plan import Step
from mandor.lib.quantity import Seconds
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, pieces
from mandor.model.instance import Instance
from mandor.model.rollout import PROVEN_MOST, GroupRollout, Rollout
from mandor.model.workload import Group, Release, Workload

Members = Mapping[str, Sequence[Instance]]


@dataclass(slots=True)
class _View:
    """One group, as this plan sees it."""

    group: Group
    state: GroupRollout
    late: list[Instance]
    """Of those of the target that are not healthy: the worst is among them."""
    mixed: bool
    """Some are of another release."""
    canaries: int = 0
    """So many wait to be promoted before anything else happens."""
    held: bool = False
    """It waits for others before it begins."""
    daemons: bool = False
    crowded_out: int = 0
    """So many daemons wait for room on their nodes."""

    @property
    def done(self) -> bool:
        """Daemons, which nobody counts, have proved nothing before one of them has been healthy."""
        state = self.state
        unproven = self.daemons and not state.healthy
        return not self.mixed and not unproven and state.updated == state.healthy + self.crowded_out == state.wanted

    @property
    def idle(self) -> bool:
        """It waits for others, or for a node that is home to it: no time passes."""
        return self.held or (self.daemons and not self.state.wanted)

    @property
    def waits(self) -> bool:
        """Its canaries are healthy, and somebody has to say so."""
        return bool(self.canaries) and self.state.healthy >= self.canaries


def plan_rollout(
    draft: Draft,
    workload: Workload,
    current: Release,
    releases: Mapping[str, Release],
    members: Members,
    waiting: Set[str],
    world: World,
) -> Steps[tuple[Rollout, dict[str, Step]]]:
    """The state of the roll-out, and how far each group may go, in steps. `current`: the release of the template as it
    is; `waiting`: groups that wait for others before they begin with it."""
    before = workload.status.rollout
    rollout = before if before is not None and before.release == current.meta.name else None
    if rollout is None:
        rollout = _begun(draft, workload, current, world.now)
    if workload.spec.rollout.aborted == rollout.release and rollout.phase in {"Progressing", "Waiting", "Paused"}:
        rollout = _failed(draft, workload, rollout, releases, "it was given up by hand", back=True, now=world.now)
    if rollout.target not in releases:
        rollout = replace(rollout, target=rollout.release)
    views: dict[str, _View] = {}
    if not rollout.settled_on:
        views = yield from _views(draft, workload, rollout, releases, members, world)
        for name in waiting & views.keys() if rollout.target == rollout.release else ():
            views[name].held = True
        rollout, views = yield from _followed(draft, workload, rollout, releases, members, views, world)
        states = {} if rollout.settled_on else {name: view.state for name, view in views.items()}
        rollout = replace(rollout, groups=states)
        late = list(chain.from_iterable([view.late for view in views.values()]))
        rollout = replace(rollout, message=told(workload, rollout, late))
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
            # Nobody who serves makes way for one that may not begin yet.
            frozen=rollout.frozen or (name in views and views[name].held and views[name].mixed),
        )
        for name in workload.spec.groups
        if name in target.spec.groups
    }


def _begun(draft: Draft, workload: Workload, current: Release, now: float) -> Rollout:
    before, name = workload.status.rollout, current.meta.name
    if before is None:
        return Rollout(release=name, target=name, began_at=now)
    left = "" if before.phase == "Done" else f", which was {before.phase}"
    why = f": {current.spec.cause}" if current.spec.cause else ""
    draft.note(workload, "RolloutStarted", f"{name} follows {before.release}{left}{why}")
    return Rollout(release=name, target=name, began_at=now, proven=before.proven)


# Groups.


def _views(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    releases: Mapping[str, Release],
    members: Members,
    world: World,
) -> Steps[dict[str, _View]]:
    target = releases[rollout.target]
    tried = any(releases[name].spec.hash == target.spec.hash for name in rollout.proven if name in releases)
    found = {}
    for name in workload.spec.groups:
        if name in target.spec.groups:
            view = found[name] = yield from _view(draft, workload, rollout, target, name, members[name], world)
            # What was healthy before, and is gone back to, has nothing to prove.
            if not tried and rollout.ongoing and view.mixed and not view.state.promoted:
                _hold_canaries(draft, workload, rollout, name, view, world)
    return found


def _view(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    target: Release,
    name: str,
    members: Sequence[Instance],
    world: World,
) -> Steps[_View]:
    group = workload.spec.groups[name]
    daemons = workload.spec.type == "daemon"
    wanted, members = at_home(target, name, members, world) if daemons else (group.count, members)
    new = yield from chosen(members, lambda piece: [each for each in piece if each.spec.release == rollout.target])
    late = yield from _late(draft, new, group, world)
    before = rollout.groups.get(name, GroupRollout())
    healthy, known = len(new) - len(late), before.wanted == wanted
    state = GroupRollout(
        wanted=wanted,
        updated=len(new),
        healthy=healthy,
        best=max(healthy, before.best) if known else healthy,
        progress_at=before.progress_at if known and healthy <= before.best and before.progress_at else world.now,
        promoted=before.promoted,
    )
    crowded_out = sum(map(no_room, late)) if daemons else 0
    mixed = len(new) < len(members)
    worst = yield from slot.worst_of_each(late)
    return _View(group, state, worst, mixed, daemons=daemons, crowded_out=crowded_out)


def _late(draft: Draft, new: Sequence[Instance], group: Group, world: World) -> Steps[list[Instance]]:
    """Those that are not healthy."""
    found: list[Instance] = []
    for piece in pieces(new, FEW):
        found += [each for each in piece if not (each.status.ready and slot.healthy(draft, each, group, world))]
        yield WRITTEN * len(piece)
    return found


def _hold_canaries(draft: Draft, workload: Workload, rollout: Rollout, name: str, view: _View, world: World) -> None:
    update, canaries = view.group.update, view.group.update.canaries(view.state.wanted)
    if not canaries:
        return
    healthy = view.state.healthy >= canaries
    by_hand = workload.spec.rollout.promoted == rollout.release
    if by_hand or (healthy and (update.auto_promote or world.rehearsed)):
        how = "by hand" if by_hand else f"{canaries} healthy"
        draft.note(workload, "RolloutPromoted", f"{rollout.release} goes on in group {name}: {how}")
        view.state = replace(view.state, promoted=True, progress_at=world.now)
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
    world: World,
) -> Steps[tuple[Rollout, dict[str, _View]]]:
    if all(view.done for view in views.values()):
        return _finished(draft, workload, rollout, world.now), views
    if workload.spec.rollout.paused and rollout.ongoing:
        if rollout.phase != "Paused":
            draft.note(workload, "RolloutPaused", f"{rollout.target}: {_progress(views)} updated")
        return _still(replace(rollout, phase="Paused"), views.values()), views
    if rollout.phase == "Paused":
        draft.note(workload, "RolloutResumed", f"{rollout.target}: {_progress(views)} updated")
    if rollout.frozen and rollout.phase == "Failed":
        return rollout, views
    under_way = [view for view in views.values() if not (view.done or view.waits or view.idle)]
    rollout = _still(rollout, [view for view in views.values() if view.waits or view.idle])
    if not under_way and rollout.phase != "Failed" and any(view.waits for view in views.values()):
        if rollout.phase != "Waiting":
            draft.note(workload, "RolloutWaiting", f"{rollout.release} is healthy so far, and waits to be promoted")
        return replace(rollout, phase="Waiting"), views
    if workload.spec.gates or not under_way:
        return _still(rollout, views.values()), views
    late = [view for view in under_way if world.now >= view.state.progress_at + view.group.update.deadline]
    if late and rollout.phase != "Failed":
        rollout = _out_of_time(draft, workload, rollout, releases, late[0], world)
        views = yield from _views(draft, workload, rollout, releases, members, world)
        return rollout, views
    return _going_on(draft, rollout, under_way, world), views


def _going_on(draft: Draft, rollout: Rollout, under_way: Sequence[_View], world: World) -> Rollout:
    if rollout.phase == "Failed":
        return rollout
    fails_at = min(view.state.progress_at + view.group.update.deadline for view in under_way)
    if fails_at != float("inf"):
        draft.again(max(fails_at - world.now, slot.SOON_SECONDS))
    back = rollout.target != rollout.release
    return replace(
        rollout,
        phase="RollingBack" if back else "Progressing",
        fails_at=0.0 if fails_at == float("inf") else fails_at,
    )


def _still(rollout: Rollout, views: Iterable[_View]) -> Rollout:
    """No time passes for them; when they go on, their clocks begin anew."""
    for view in views:
        view.state = replace(view.state, progress_at=0.0)
    return replace(rollout, fails_at=0.0)


def _finished(draft: Draft, workload: Workload, rollout: Rollout, now: float) -> Rollout:
    proven = (*(name for name in rollout.proven if name != rollout.target), rollout.target)[-PROVEN_MOST:]
    first = not rollout.proven
    done = replace(rollout, ended_at=now, proven=proven, fails_at=0.0)
    if rollout.target != rollout.release:
        draft.note(workload, "RolledBack", f"all is back at {rollout.target}: {rollout.failure}", warning=True)
        return replace(done, phase="RolledBack")
    if not first:
        draft.note(workload, "RolloutDone", f"all instances are of {rollout.release}, and healthy")
    return replace(done, phase="Done", failure="")


# Failure.


def _out_of_time(
    draft: Draft,
    workload: Workload,
    rollout: Rollout,
    releases: Mapping[str, Release],
    view: _View,
    world: World,
) -> Rollout:
    within = f"no further instance became healthy within {Seconds(view.group.update.deadline)}"
    why = f"{within}{trouble(view.late)}"
    return _failed(draft, workload, rollout, releases, why, back=view.group.update.auto_rollback, now=world.now)


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
    """Back to the last release that was healthy, once: a way back that fails leads nowhere else."""
    last = next((name for name in reversed(rollout.proven) if name in releases and name != rollout.release), "")
    if rollout.target == rollout.release and back and last:
        draft.note(
            workload, "RollingBack", f"{rollout.release} has failed, and goes back to {last}: {why}", warning=True
        )
        return replace(rollout, phase="RollingBack", target=last, failure=why, groups={}, fails_at=0.0)
    if rollout.target == rollout.release:
        draft.note(workload, "RolloutFailed", f"{rollout.release}: {why}", warning=True)
        return replace(rollout, phase="Failed", failure=why, ended_at=now, fails_at=0.0)
    draft.note(workload, "RolloutFailed", f"the way back to {rollout.target}: {why}", warning=True)
    return replace(rollout, phase="Failed", ended_at=now, fails_at=0.0)


def _progress(views: Mapping[str, _View]) -> str:
    states = [view.state for view in views.values()]
    return f"{sum(each.updated for each in states)} of {sum(each.wanted for each in states)}"
