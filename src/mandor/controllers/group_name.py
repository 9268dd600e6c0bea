"""GroupName: the full name of a group of a workload."""

from typing import NamedTuple

from mandor.model.instance import Instance


class GroupName(NamedTuple):
    namespace: str
    workload: str
    group: str

    def __str__(self) -> str:
        named = f"{self.namespace}/{self.workload}"
        return named if self.group == "main" else f"{named}, group {self.group}"


def group_of(instance: Instance) -> GroupName:
    return GroupName(instance.meta.namespace, instance.spec.workload, instance.spec.group)
