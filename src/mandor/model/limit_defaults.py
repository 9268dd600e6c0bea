"""LimitDefaults: default and maximum resources of the tasks in a namespace."""

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
    """Default and maximum resources, applied to tasks when their workload is applied."""

    resources: TaskResources = TaskResources()
    """Requests and limits of tasks that set none."""
    most: Limits = Limits()
    """Maximum request and limit of a task; also the limit of tasks that set none."""

    def __post_init__(self) -> None:
        if self.resources == TaskResources() and self.most == Limits():
            raise ValueError("set `resources`, `most` or both")
        if self.resources.devices:
            raise ValueError("`resources.devices` cannot have a default; set devices on the tasks that need them")
        for name in ("cpu", "memory", "processes"):
            most = getattr(self.most, name)
            usual = (getattr(self.resources, name, None), getattr(self.resources.limits, name))
            if most is not None and any(each is not None and each > most for each in usual):
                raise ValueError(f"the default of {name} is above `most.{name}`, which is {most}")


class LimitDefaults(Object, frozen=True, tag="limit-defaults"):
    """Default resources and limits for tasks of a namespace that leave them out."""

    kind: ClassVar[str] = "limit-defaults"
    plural: ClassVar[str] = "limit-defaults"
    spec: LimitDefaultsSpec
    status: Empty = field(default_factory=Empty)


def filled(workload: Workload, defaults: LimitDefaultsSpec) -> Workload:
    """Return the workload with the defaults set wherever a task sets no value."""
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
    """Fill in unset values; None (same as the main form) stays None."""
    if given is None:
        return given
    usual, most = defaults.resources, defaults.most
    cpu = _request(given.cpu, usual.cpu, given.limits.cpu)
    memory = _request(given.memory, usual.memory, given.limits.memory)
    limits = Limits(
        cpu=_limit(given.limits.cpu, cpu, usual.limits.cpu, most.cpu),
        memory=_limit(given.limits.memory, memory, usual.limits.memory, most.memory),
        processes=_limit(given.limits.processes, None, usual.limits.processes, most.processes),
    )
    return msgspec.structs.replace(given, cpu=cpu, memory=memory, disk=given.disk or usual.disk, limits=limits)


def _request(given: Amount | None, usual: Amount | None, limit: Amount | None) -> Amount | None:
    """Return the task's own request (0 is one, too), else the default, but at most the task's own limit."""
    if given is not None or usual is None:
        return given
    return usual if limit is None else min(usual, limit)


def _limit(given: Amount | None, request: Amount | None, usual: Amount | None, most: Amount | None) -> Amount | None:
    """Return the task's own limit, else the default, but at least the task's own request."""
    found = given if given is not None else usual if usual is not None else most
    return found if found is None or request is None else max(found, request)


def over(task: Task, most: Limits) -> tuple[str, str, str] | None:
    """Find the first amount above `most`: its path, the amount and the maximum; None if there is none."""
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
