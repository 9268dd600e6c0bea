"""Decides whether a machine is needed, or its instances fit elsewhere: tried on a cluster model in small steps."""

from collections.abc import Generator, Mapping, Sequence

from msgspec.structs import replace

from mandor.controllers.growth_plan import place
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.model.resources import Resources
from mandor.model.workload import Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.conversion import PlacementState, placement_state, release_key, workload_key
from mandor.placement.framework.profile import Profile


def movable_instances(board: ClusterModel, node: str) -> list[Instance]:
    """Return the instances on a node except daemons."""
    there = (board.instances[key] for key in sorted(board.table.keys_on(node)) if key in board.instances)
    placed = [each for each in there if placement_state(each) is PlacementState.PLACED]
    return [each for each in placed if (w := _workload(board, each)) is None or w.spec.type != "daemon"]


def cannot_leave(board: ClusterModel, node: Node, work: Sequence[Instance], busy_above: float) -> str:
    """Return why the node's instances must stay, whatever room there is elsewhere; empty: they may move."""
    if _busy(board, node, work) > busy_above:
        return "its utilisation is too high"
    return "" if all(_may_leave(board, each) for each in work) else "some of its instances cannot move"


def fits_elsewhere(
    board: ClusterModel, profiles: Mapping[str, Profile], node: Node, work: Sequence[Instance]
) -> Generator[None, None, bool]:
    """Return whether all instances would fit on the other nodes at the same time. The model is restored at the end;
    between the steps other code must not change it."""
    board.put(node.changed(spec=replace(node.spec, cordoned=True)))
    try:
        with board.table.trial():
            requests = []
            for each in work:
                request = board.request(each)
                if request is None:
                    return False
                board.table.drop_allocation(each.key)
                requests.append(replace(request, pin="", member=None, preempts=False))
            for request in requests:
                if not place(board, profiles, request):
                    return False
                yield
            return True
    finally:
        board.put(node)


def _busy(board: ClusterModel, node: Node, work: Sequence[Instance]) -> float:
    asked, has = Resources(), node.allocatable
    for each in work:
        asked += _request(board, each)
    return 100 * max(asked.cpu_milli / max(has.cpu_milli, 1), asked.memory_bytes / max(has.memory_bytes, 1))


def _may_leave(board: ClusterModel, instance: Instance) -> bool:
    workload = _workload(board, instance)
    if workload is None or workload.spec.type != "service" or instance.spec.volumes:
        return False
    return not workload.spec.gang_of(instance.spec.group)


def _request(board: ClusterModel, instance: Instance) -> Resources:
    release = board.releases.get(release_key(instance))
    group = release.spec.groups.get(instance.spec.group) if release is not None else None
    return group.form(instance.spec.variant).request if group is not None else Resources()


def _workload(board: ClusterModel, instance: Instance) -> Workload | None:
    return board.workloads.get(workload_key(instance))
