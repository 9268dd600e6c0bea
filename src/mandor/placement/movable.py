"""Who may be moved for a better place, as nothing is wrong with the one it has."""

from collections import Counter
from collections.abc import Mapping, Sequence

from mandor.lib.steps import FEW, Steps, pieces
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.workload import Group, Workload
from mandor.placement.cycle import AVOIDED, DISLIKED

NOT_ITS_OWN = frozenset({AVOIDED, DISLIKED})
"""What may have been given up besides the rules of its author: no reason to move."""


def relaxed(instance: Instance) -> tuple[str, ...]:
    """The author's rules that were given up for its place."""
    given_up = instance.spec.relaxed
    return tuple(rule for rule in given_up if rule not in NOT_ITS_OWN) if given_up else ()


def stops_first(group: Group) -> bool:
    """Nobody can take an instance's place on another node before it has ended: its author wants it so, a gang is placed
    as a whole, and data of its own goes with a name."""
    own = any(volume.per_instance for volume in group.volumes.values())
    return group.update.order == "stop-first" or group.gang is not None or own


def whole(members: Sequence[Instance]) -> Steps[Counter[str]]:
    """How many there are of each group of a workload, if all serve and none is on the move; else nobody."""
    found = Counter[str]()
    for piece in pieces(members, FEW):
        if not all(map(_settled, piece)):
            return Counter()
        found.update([each.spec.group for each in piece])
        yield 4 * len(piece)
    return found


def may_move(instance: Instance, workload: Workload | None, members: Mapping[str, int]) -> bool:
    """Its service is whole, nobody of it is on the move, and nobody has said that it stays. `members`: see `whole`."""
    if workload is None or workload.spec.type != "service" or workload.spec.gates or instance.spec.volumes:
        return False  # what it keeps on its node does not move
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
