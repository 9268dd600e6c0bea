"""Which instance goes back to where its rules are kept, and where that is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.placement.cycle import AVOIDED, DISLIKED, decide
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault, run_filters
from mandor.placement.framework.watch import Unwatched, Watch
from mandor.placement.table import Table

NOT_ITS_OWN = frozenset({AVOIDED, DISLIKED})
"""What may have been given up besides the rules of its author: no reason to move."""


def relaxed(instance: Instance) -> tuple[str, ...]:
    """The author's rules that were given up for its place."""
    return tuple(rule for rule in instance.spec.relaxed if rule not in NOT_ITS_OWN)


def may_move(instance: Instance, workload: Workload | None, members: Sequence[Instance]) -> bool:
    """Its service is whole, nobody of it is on the move, and nobody has said that it stays."""
    if workload is None or workload.spec.type != "service" or workload.spec.gates or instance.spec.volumes:
        return False  # what it keeps on its node does not move
    group = workload.spec.groups.get(instance.spec.group)
    if group is None or not group.restore or group.gang is not None:
        return False
    rollout = workload.status.rollout
    if rollout is None or rollout.settled_on != instance.spec.release:
        return False
    mine = [each for each in members if each.spec.group == instance.spec.group]
    return len(mine) == group.count and all(_settled(each) for each in members)


def _settled(instance: Instance) -> bool:
    spec = instance.spec
    serves = instance.phase is Phase.RUNNING and instance.status.ready
    return serves and spec.stop is None and spec.move is None


def destination(
    instance: Instance, ask: Ask, table: Table, profiles: Mapping[str, Profile], watch: Watch | None = None
) -> str:
    """The node where it would keep all its rules, beside the one that it is to take the place of; empty: none, or
    it keeps them where it stands by now."""
    profile, watch = profiles.get(ask.profile), watch or Unwatched()
    if profile is None:
        return ""
    ask = replace(ask, pin="")  # what sent it to where it is does not hold any more
    try:
        with table.trial():
            table.drop_charge(instance.key)
            if instance.spec.node in _keeping(profile, ask, table, watch):
                return ""
        if not _keeping(profile, ask, table, watch):
            return ""
        decision = decide(profile, ask, table.snapshot(), watch=watch)
    except PluginFault:
        return ""  # the scheduler meets the same fault, and tells of it
    finally:
        watch.end()
    return "" if decision.relaxed or decision.node == instance.spec.node else decision.node


def _keeping(profile: Profile, ask: Ask, table: Table, watch: Watch) -> set[str]:
    nodes = table.snapshot()
    feasible = run_filters(profile, CycleState(), ask, nodes, watch).feasible
    return {nodes.nodes[int(slot)].meta.name for slot in feasible.nonzero()[0]}
