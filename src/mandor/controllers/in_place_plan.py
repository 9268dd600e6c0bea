"""Detects services and daemons that need no change, which is the usual case and needs no plan."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mandor.controllers import replicas
from mandor.controllers.gate_plan import all_open
from mandor.controllers.release_plan import RELEASES_KEPT
from mandor.controllers.replicas import ClusterView
from mandor.lib.steps import Steps, chosen, pieces
from mandor.model.instance import Instance
from mandor.model.workload import Release, Workload
from mandor.placement.daemon_nodes import DaemonNodes


def in_place(
    workload: Workload,
    current: Release,
    releases: Sequence[Release],
    instances: Sequence[Instance],
    cluster: ClusterView,
) -> Steps[bool]:
    """Return True if no instance has to be created, stopped or replaced; then only the roll-out and the status may
    change. False means that a full plan is needed to decide. `current`: the release of the current template."""
    rollout, groups = workload.status.rollout, workload.spec.groups
    if workload.spec.type == "batch" or rollout is None or rollout.release != current.meta.name:
        return False
    target = next((each for each in releases if each.meta.name == rollout.target), None)
    if target is None or groups.keys() - target.spec.groups.keys():
        return False
    if len(releases) > RELEASES_KEPT or not all_open(workload, current):
        return False
    found = Counter[str]()
    for piece in pieces(instances):
        if replicas.any_unsettled(piece, rollout.target):
            return False
        found.update([each.spec.group for each in piece])
        yield 5 * len(piece)
    if workload.spec.type == "daemon":
        return found.keys() <= groups.keys() and (yield from _all_at_home(target, groups, instances, cluster))
    pinned = yield from chosen(instances, lambda piece: [each for each in piece if each.spec.pin and each.spec.home])
    return not pinned and found == {name: group.count for name, group in groups.items() if group.count}


def _all_at_home(
    target: Release, groups: Iterable[str], instances: Sequence[Instance], cluster: ClusterView
) -> Steps[bool]:
    eligible: dict[str, list[str]] = {name: [] for name in groups}
    for piece in pieces(instances):
        for each in piece:
            eligible[each.spec.group].append(each.spec.home)
        yield 3 * len(piece)
    return all(_at_home(there, cluster.site(target, name)) for name, there in eligible.items())


def _at_home(there: Sequence[str], site: DaemonNodes) -> bool:
    """Return whether every eligible node has a daemon, and every daemon may stay."""
    return site.eligible.issubset(there) and all(each in site.eligible or each in site.retained for each in there)
