"""Invariants of a cluster at every step; each check raises an `AssertionError` that names the violation."""

from mandor.controllers.batch_plan import batch_of
from mandor.model.node import Node
from mandor.model.resources import Resources
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.sim.world import World


def check_capacity(world: World) -> None:
    """No node is over its capacity."""
    used: dict[str, Resources] = {}
    for each in world.instances():
        if each.node and not each.phase.over:
            release = world.find(Release, each.spec.release, each.meta.namespace)
            assert release is not None, f"{each.meta.name} has no release"
            form = release.spec.groups[each.spec.group].form(each.spec.variant)
            used[each.node] = used.get(each.node, Resources()) + form.request
    for name, amount in used.items():
        node = world.find(Node, name, "")
        assert node is None or amount.fits(node.allocatable), f"{name} is over its capacity: {amount}"


def check_count(world: World) -> None:
    """No workload has more instances alive than it wants, or may have while it is rolled out."""
    for workload in world.all(Workload):
        for name, group in workload.spec.groups.items():
            if workload.spec.per_node:
                continue  # One on each node, which the node's own name in it sees to.
            if workload.spec.type == "batch":
                most = batch_of(workload, name).together
            else:
                rollout = workload.status.rollout
                beside = max(group.update_room()[0], group.update.canaries(group.count))
                most = group.count + (0 if rollout is not None and rollout.settled_on else beside)
            live = [
                each
                for each in world.instances(workload.meta.name)
                if each.spec.group == name and not each.phase.over and each.spec.stop is None
            ]
            assert len(live) <= most, f"{workload.meta.name} has {len(live)} of {most}"


def check_volumes(world: World) -> None:
    """Each instance is on the node of its volumes."""
    for each in world.instances():
        if not each.node or each.phase.over:
            continue
        for name in each.spec.volumes:
            volume = world.find(Volume, name, each.meta.namespace)
            assert (
                volume is None or volume.node == each.node or volume.status.incarnation > 0 or (not volume.status.path)
            ), f"{each.meta.name} is on {each.node}, its volume {name} on {volume.node}"
