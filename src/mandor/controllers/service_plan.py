"""Plan for one group of a service: as many as wanted, of the release that is wanted."""

from collections.abc import Sequence

from mandor.controllers import slot
from mandor.controllers.draft import Draft
from mandor.controllers.move_plan import extra, plan_moves, who_leave
from mandor.controllers.slot import World
from mandor.controllers.update_plan import Step, plan_update
from mandor.model.instance import Instance
from mandor.model.workload import Workload


def plan_service(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], step: Step, world: World
) -> None:
    target = step.target.meta.name
    if {each.spec.release for each in members} - {target}:
        plan_update(draft, workload, name, members, step, world)
    else:
        _plan_one_release(draft, workload, name, members, step, world)


def _plan_one_release(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], step: Step, world: World
) -> None:
    group, release = workload.spec.groups[name], step.target
    kept: Sequence[Instance] = members
    surplus: Sequence[Instance] = ()
    leaving = who_leave(members)
    wanted = group.count + extra(leaving, members)
    if len(members) > wanted:
        by_worth = sorted(members, key=slot.rank)
        kept, surplus = by_worth[:wanted], by_worth[wanted:]
    for each in surplus:
        slot.lose(draft, each, slot.SCALED_DOWN, world.now)
    free = slot.free_indices(workload.meta.name, name, members, world)
    moving: set[str] = set()
    if leaving and not surplus:
        moving = plan_moves(draft, workload, name, leaving, kept, release, free, world)
    for each in slot.unsettled(kept, release.meta.name):
        if each.meta.uid not in moving:
            slot.renew(draft, each, group, release, world)
    missing = wanted - len(kept)
    if missing > 0:
        slot.create_some(draft, workload, name, free, missing, len(members), release)
        if workload.status.release:
            draft.note(workload, "ScaledUp", f"more of {name}: {group.count} are wanted")
    if surplus and not all(each.spec.stop for each in surplus):
        draft.note(workload, "ScaledDown", f"{len(surplus)} fewer of {name}: {group.count} are wanted")
