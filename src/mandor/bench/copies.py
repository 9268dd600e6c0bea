"""Groups equal pods into one workload with many instances."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from mandor.model.group import FLAT
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.lifecycle import Gang
from mandor.model.meta import Meta
from mandor.model.workload import Release, Workload


@dataclass(slots=True)
class Copies:
    """Equal pods as one workload."""

    workload: Workload
    release: Release
    kept: bool
    pod_group: str = ""
    instances: list[Instance] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    """Index of each pod among all pods of the operation."""

    def together(self, least: int) -> None:
        """Return the number of pods that must be bound together."""
        group = msgspec.structs.replace(
            self.workload.spec.groups[FLAT], replicas=len(self.instances), gang=Gang(min=least)
        )
        spec = msgspec.structs.replace(self.workload.spec, groups={FLAT: group})
        self.workload = self.workload.changed(spec=spec)

    def add(self, turns: Iterable[int]) -> "Copies":
        meta, name = self.workload.meta, self.workload.meta.name
        for turn in turns:
            index = len(self.instances)
            self.turns.append(turn)
            self.instances.append(
                Instance(
                    meta=Meta(name=f"{name}-{index}", namespace=meta.namespace),
                    spec=InstanceSpec(workload=name, group=FLAT, release=self.release.meta.name, index=index),
                )
            )
        return self


def in_turn(made: Sequence[Copies]) -> list[Instance]:
    """Return the instances in the order in which the pods would be created one by one."""
    if len(made) == 1:
        return made[0].instances
    turns = [each for copies in made for each in zip(copies.turns, copies.instances, strict=True)]
    return [instance for _, instance in sorted(turns, key=lambda each: each[0])]
