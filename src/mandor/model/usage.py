"""What machines and instances use now, as agents measure it: told with each heartbeat."""

from typing import ClassVar

from msgspec import Struct, field

from mandor.model.instance import instance_prefix
from mandor.model.meta import Object


class NodeUsage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """What a machine uses now, measured by its agent; CPU and network are averages since the report before."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    network_in_bytes: int = 0
    """A second."""
    network_out_bytes: int = 0
    """A second."""


class InstanceUsage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    cpu_milli: int = 0
    memory_bytes: int = 0
    warming: bool = False
    """It is not ready, or has just been met: what it uses says nothing about the load."""


class GroupUsage(Struct, frozen=True, gc=False, omit_defaults=True, array_like=True):
    """What so many ready instances of a group use together."""

    count: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "GroupUsage") -> "GroupUsage":
        return GroupUsage(
            self.count + other.count, self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes
        )


class TallySpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    groups: dict[str, GroupUsage] = {}
    """By `namespace/` and what the names of the group's instances begin with: `default/web`, `default/shop-web`."""


def tally_name(namespace: str, workload: str, group: str) -> str:
    return f"{namespace}/{instance_prefix(workload, group)}"


class TallyStatus(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class Tally(Object, frozen=True, tag="tally"):
    """What groups whose count follows their load use on the nodes that one server hears; its name is the server's id,
    with a number where one object would be too large."""

    kind: ClassVar[str] = "tally"
    plural: ClassVar[str] = "tallies"
    namespaced: ClassVar[bool] = False
    spec: TallySpec
    status: TallyStatus = field(default_factory=TallyStatus)

    @property
    def server(self) -> str:
        return self.meta.name.partition(".")[0]
