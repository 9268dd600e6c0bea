"""Plan for one group of a service: the wanted number of instances of the wanted release."""

from collections.abc import Sequence

from mandor.controllers import replicas
from mandor.controllers.draft import Draft
from mandor.controllers.move_plan import extra, find_leaving, plan_moves
from mandor.controllers.replicas import ClusterView
from mandor.controllers.update_plan import Step, plan_update
from mandor.lib.steps import Steps, chosen, ordered
from mandor.model.instance import Instance
from mandor.model.workload import Workload


def plan_service(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], step: Step, cluster: ClusterView
) -> Steps[None]:
    target = step.target.meta.name
    releases = yield from chosen(members, lambda piece: {each.spec.release for each in piece})
    if set(releases) - {target}:
        yield from plan_update(draft, workload, name, members, step, cluster)
    else:
        yield from _plan_one_release(draft, workload, name, members, step, cluster)


def _plan_one_release(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], step: Step, cluster: ClusterView
) -> Steps[None]:
    group, release = workload.spec.groups[name], step.target
    kept: Sequence[Instance] = members
    surplus: Sequence[Instance] = ()
    leaving = yield from find_leaving(members)
    wanted = group.count + (yield from extra(leaving, members))
    if len(members) > wanted:
        by_worth = yield from ordered(members, key=replicas.rank)
        kept, surplus = by_worth[:wanted], by_worth[wanted:]
    yield from replicas.lose_all(draft, surplus, replicas.SCALED_DOWN, cluster.now)
    missing = wanted - len(kept)
    used: set[int] = set()
    if leaving or missing > 0:
        used = yield from replicas.used_indices(members)
    free = replicas.free_indices(workload.meta.name, name, used, cluster)
    moving: set[str] = set()
    if leaving and not surplus:
        moving = yield from plan_moves(draft, workload, name, leaving, kept, release, free, cluster)
    yield from replicas.renew_all(draft, kept, group, release, cluster, but=moving)
    if missing > 0:
        replicas.create_some(draft, workload, name, free, missing, len(members), release)
        if workload.status.release:
            draft.note(workload, "ScaledUp", _scaled(name, group.count - missing, group.count))
    if surplus and not all(each.spec.stop for each in surplus):
        draft.note(workload, "ScaledDown", _scaled(name, group.count + len(surplus), group.count))


def _scaled(group: str, before: int, after: int) -> str:
    return f"scaled group {group} from {before} to {after} instance{'' if after == 1 else 's'}"
