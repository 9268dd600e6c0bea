"""Status message of a roll-out: progress, what it waits for, and the commands that help."""

from collections.abc import Sequence

from mandor.controllers import replicas
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.rollout import Rollout
from mandor.model.workload import Workload


def describe(workload: Workload, rollout: Rollout, late: Sequence[Instance]) -> str:
    """Return the message without times, so that an unchanged state gives an unchanged message."""
    name, release = workload.meta.name, rollout.release
    if rollout.phase == "Done":
        return ""
    if rollout.phase == "RolledBack":
        return f"{release} failed, rolled back to {rollout.target}: {rollout.failure}"
    if rollout.phase == "Failed":
        if rollout.target != release:
            return f"{release} failed, and so did the rollback to {rollout.target}{trouble(late)}"
        out = f"`mandor rollout undo {name}` rolls back" if rollout.proven else "apply a corrected manifest"
        return f"{release} failed: {rollout.failure}; {out}"
    far = _far(rollout)
    if rollout.phase == "RollingBack":
        return f"{release} failed ({rollout.failure}); rolling back to {rollout.target}: {far}{trouble(late)}"
    if rollout.phase == "Paused":
        return f"paused: {far} updated to {rollout.target}; `mandor rollout resume {name}` continues"
    if rollout.phase == "Waiting":
        return (
            f"{far} updated to {release} and healthy; `mandor rollout promote {name}` continues, "
            f"`mandor rollout abort {name}` rolls back"
        )
    return f"{far} updated to {release}{trouble(late)}"


def _far(rollout: Rollout) -> str:
    """Describe the progress, with several groups by name and without finished ones."""
    groups = {name: each for name, each in rollout.groups.items() if each.healthy < each.wanted or each.updated}
    if len(rollout.groups) <= 1:
        return ", ".join(f"{each.healthy} of {each.wanted}" for each in groups.values()) or "nothing"
    open_ones = {name: each for name, each in groups.items() if each.healthy < each.wanted} or groups
    return ", ".join(f"{name} {each.healthy} of {each.wanted}" for name, each in sorted(open_ones.items()))


def trouble(late: Sequence[Instance]) -> str:
    """Describe the worst of the unhealthy instances; empty: there is none."""
    if not late:
        return ""
    worst = replicas.worst(late)
    return f"; {worst.meta.name} {_state(worst)}"


def _state(instance: Instance) -> str:
    status = instance.status
    more = f": {status.message}" if status.message else ""
    if instance.phase.over:
        return f"ended: {replicas.shown_end(instance)}"
    if instance.phase is Phase.LOST:
        return f"is lost with its node {instance.spec.node}"
    if instance.spec.stop is not None:
        return f"is stopping: {instance.spec.stop.reason}"
    if not instance.spec.node:
        return f"waits for a node{more}"
    if instance.phase is not Phase.RUNNING:
        return f"is {instance.phase.value}{more}"
    if not status.ready:
        return f"is not ready{more}"
    return "became ready just now"
