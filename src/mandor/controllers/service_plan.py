"""Plan for one group of a service: as many as wanted, replaced when they end, updated one at a time."""

from collections.abc import Iterator, Sequence
from itertools import count as numbers
from itertools import filterfalse, islice

from mandor.controllers import slot
from mandor.controllers.draft import Draft
from mandor.controllers.move_plan import extra, plan_moves, who_leave
from mandor.controllers.slot import World
from mandor.model.instance import Instance, instance_name
from mandor.model.phase import Phase
from mandor.model.workload import Group, Release, Workload


def plan_service(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], release: Release, world: World
) -> None:
    group = workload.spec.groups[name]
    newest = release.meta.name
    kept: Sequence[Instance] = members
    surplus: Sequence[Instance] = ()
    leaving = who_leave(members)
    wanted = group.count + extra(leaving, members)
    if len(members) > wanted:
        # Most worth keeping first; among equals who need not leave, the newest release, then the older instance.
        by_worth = sorted(
            members,
            key=lambda each: (
                -slot.worth(each),
                each.spec.move is not None,
                each.spec.release != newest,
                each.meta.created_at,
                each.spec.index,
            ),
        )
        kept, surplus = by_worth[:wanted], by_worth[wanted:]
    for each in surplus:
        slot.lose(draft, each, "scaled down", world.now)
    free = _free_indices(workload.meta.name, name, members, world)
    moving: set[str] = set()
    if leaving and not surplus:
        moving = plan_moves(draft, workload, name, leaving, kept, release, free, world.now)
    for each in kept:
        if not slot.settled(each, newest) and each.meta.uid not in moving:
            _renew(draft, each, group, release, world)
    missing = wanted - len(kept)
    if missing > 0:
        now = min(missing, slot.at_once(len(members)))
        for index in islice(free, now):
            slot.create(draft, workload, name, index, release)
        if missing > now:
            draft.again(0.0)
        if workload.status.release:
            draft.note(workload, "ScaledUp", f"more of {name}: {group.count} are wanted")
    if surplus and not all(each.spec.stop for each in surplus):
        draft.note(workload, "ScaledDown", f"{len(surplus)} fewer of {name}: {group.count} are wanted")
    if missing <= 0 and not moving:
        for each in outdated_to_stop(kept, newest):
            slot.stop(draft, each, f"updated to {newest}", world.now)


def outdated_to_stop(members: Sequence[Instance], release: str) -> list[Instance]:
    """Which instances of older releases are stopped now, to be replaced: one at a time, and the next
    one only when all that are not old run and are ready."""
    old: list[Instance] = []
    for each in members:
        if each.spec.release == release or each.spec.stop is not None:
            if not slot.serving(each):
                return []
        elif slot.ended(each) or each.phase is Phase.LOST or not each.spec.node:
            return []
        else:
            old.append(each)
    return sorted(old, key=lambda each: (slot.worth(each), each.spec.index))[:1]


def _renew(draft: Draft, each: Instance, group: Group, release: Release, world: World) -> None:
    """What ended, is lost, or waits with an old template makes place for a new one of its name."""
    outdated = each.spec.release != release.meta.name
    unasked = each.phase in {Phase.FAILED, Phase.SUCCEEDED} and each.spec.stop is None
    if unasked and not outdated:
        _retry(draft, each, group, release, world)
    elif slot.ended(each):
        slot.replace(draft, each, release)
    elif slot.replaceable(each, group, world):
        draft.note(each, "Replaced", f"its node {each.spec.node} is lost", warning=True)
        slot.replace(draft, each, release, attempt=each.spec.attempt, avoid=each.spec.avoid)
    elif outdated and not each.spec.node:
        slot.replace(draft, each, release)


def _retry(draft: Draft, each: Instance, group: Group, release: Release, world: World) -> None:
    earlier = _earlier_failures(each, group)
    left = slot.wait_seconds(each, group, world.now, earlier)
    if left > 0:
        draft.again(left)
        return
    draft.note(each, "Replaced", f"it ended on {each.spec.node} ({slot.shown_end(each)})", warning=True)
    slot.retry(draft, each, release, earlier)


def _earlier_failures(each: Instance, group: Group) -> int:
    """How many copies before it failed; none, if it ran so long that they say nothing any more."""
    status = each.status
    ran_long = status.started_at > 0 and status.since - status.started_at >= group.reschedule.max_delay
    return 0 if ran_long else each.spec.attempt


def _free_indices(workload: str, group: str, members: Sequence[Instance], world: World) -> Iterator[int]:
    """The lowest first, without end; nothing is done before the first is asked for."""
    used = {each.spec.index for each in members}
    for index in filterfalse(used.__contains__, numbers()):
        if not world.taken(instance_name(workload, group, index)):
            yield index
