"""LimitDefaults: what tasks of a namespace ask for that say nothing about it, and the most that one may."""

from typing import ClassVar, TypeVar

import msgspec
from msgspec import Struct, field

from mandor.lib.quantity import Cpu, Size
from mandor.model.meta import Object
from mandor.model.record import Empty
from mandor.model.resources import Limits, TaskResources
from mandor.model.task import Task
from mandor.model.variant import TaskVariant
from mandor.model.workload import Workload

Amount = TypeVar("Amount", Cpu, Size, int)
T = TypeVar("T", Task, TaskVariant)


class LimitDefaultsSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A task that says nothing of an amount gets it from here, when its workload is applied."""

    resources: TaskResources = TaskResources()
    """What such a task asks for, and the most it may use."""
    most: Limits = Limits()
    """No task asks for more, or has a higher limit; one without a limit gets this."""

    def __post_init__(self) -> None:
        if self.resources == TaskResources() and self.most == Limits():
            raise ValueError("give `resources`, `most` or both")
        if self.resources.devices:
            raise ValueError("devices are asked for by the tasks that need them: they have no default")
        for name in ("cpu", "memory", "processes"):
            most = getattr(self.most, name)
            usual = (getattr(self.resources, name, None), getattr(self.resources.limits, name))
            if most is not None and any(each is not None and each > most for each in usual):
                raise ValueError(f"the default of {name} is above most.{name} {most}")


class LimitDefaults(Object, frozen=True, tag="limit-defaults"):
    """Default resources and limits for tasks of a namespace that leave them out."""

    kind: ClassVar[str] = "limit-defaults"
    plural: ClassVar[str] = "limit-defaults"
    spec: LimitDefaultsSpec
    status: Empty = field(default_factory=Empty)


def filled(workload: Workload, defaults: LimitDefaultsSpec) -> Workload:
    """The same workload, with a number wherever its tasks gave none."""
    replace = msgspec.structs.replace
    groups = {
        name: replace(
            group,
            tasks=_filled(group.tasks, defaults),
            alternatives=tuple(
                replace(each, resources=_resources(each.resources, defaults), tasks=_filled(each.tasks, defaults))
                for each in group.alternatives
            ),
        )
        for name, group in workload.spec.groups.items()
    }
    return workload.changed(spec=replace(workload.spec, groups=groups))


def _filled(tasks: dict[str, T], defaults: LimitDefaultsSpec) -> dict[str, T]:
    return {
        name: msgspec.structs.replace(task, resources=_resources(task.resources, defaults))
        for name, task in tasks.items()
    }


def _resources(given: TaskResources | None, defaults: LimitDefaultsSpec) -> TaskResources | None:
    """None: as in the main form, which has its numbers already."""
    if given is None:
        return given
    usual, most = defaults.resources, defaults.most
    cpu = _request(given.cpu, usual.cpu, given.limits.cpu)
    memory = _request(given.memory, usual.memory, given.limits.memory)
    limits = Limits(
        cpu=_limit(given.limits.cpu, cpu, usual.limits.cpu, most.cpu),
        memory=_limit(given.limits.memory, memory, usual.limits.memory, most.memory),
        processes=_limit(given.limits.processes, 0, usual.limits.processes, most.processes),
    )
    return msgspec.structs.replace(given, cpu=cpu, memory=memory, disk=given.disk or usual.disk, limits=limits)


def _request(given: Amount, usual: Amount, limit: Amount | None) -> Amount:
    """What it gave, else the default; but not above its own limit."""
    return given or (usual if limit is None else min(usual, limit))


def _limit(given: Amount | None, request: Amount, usual: Amount | None, most: Amount | None) -> Amount | None:
    """What it gave, else the default; but not below its own request."""
    found = given if given is not None else usual if usual is not None else most
    return max(found, request) if found is not None else None


def over(task: Task, most: Limits) -> tuple[str, str, str] | None:
    """The path of the first amount that is above `most`, that amount, and the most."""
    asked = {
        "cpu": task.resources.cpu,
        "memory": task.resources.memory,
        "limits.cpu": task.resources.limits.cpu,
        "limits.memory": task.resources.limits.memory,
        "limits.processes": task.resources.limits.processes,
    }
    for path, amount in asked.items():
        bound = getattr(most, path.rpartition(".")[2])
        if bound is not None and amount is not None and amount > bound:
            return path, str(amount), str(bound)
    return None
