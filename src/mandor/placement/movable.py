"""Rules for voluntary moves: which instances may be moved to a better node."""

from collections import Counter
from collections.abc import Mapping, Sequence

from mandor.lib.steps import FEW, Steps, pieces
from mandor.model.group import Group
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.cycle import AVOIDED, DISLIKED

IMPLICIT_RULES = frozenset({AVOIDED, DISLIKED})
"""Rules that are not the author's; giving them up is no reason to move."""


def relaxed(instance: Instance) -> tuple[str, ...]:
    """Return the author's rules that were given up for the instance's node."""
    given_up = instance.spec.relaxed
    return tuple(rule for rule in given_up if rule not in IMPLICIT_RULES) if given_up else ()


def stops_first(group: Group) -> bool:
    """Return whether an instance has to stop before its replacement starts on another node.

    That holds for stop-first groups, for gangs, which are placed as a whole, and for volumes per instance.
    """
    own = any(volume.per_instance for volume in group.volumes.values())
    return group.update.order == "stop-first" or group.gang is not None or own


def whole(members: Sequence[Instance]) -> Steps[Counter[str]]:
    """Return the number of instances by group if all of a workload serve and none is moving; else empty."""
    found = Counter[str]()
    for piece in pieces(members, FEW):
        if not all(map(_settled, piece)):
            return Counter()
        found.update([each.spec.group for each in piece])
        yield 4 * len(piece)
    return found


def may_move(instance: Instance, workload: Workload | None, members: Mapping[str, int]) -> bool:
    """Return whether an instance may be moved: its service is complete and not moving, and moves are not disabled.

    `members`: the result of `whole`.
    """
    if workload is None or workload.spec.type != "service" or workload.spec.gates or instance.spec.volumes:
        return False  # local volumes do not move
    group = workload.spec.groups.get(instance.spec.group)
    if group is None or not group.restore or stops_first(group):
        return False
    rollout = workload.status.rollout
    if rollout is None or rollout.settled_on != instance.spec.release:
        return False
    return 0 < members.get(instance.spec.group, 0) == group.count


def _settled(instance: Instance) -> bool:
    spec = instance.spec
    serves = instance.phase is Phase.RUNNING and instance.status.ready
    return serves and spec.stop is None and spec.move is None
