"""Resource usage of nodes and instances, measured by agents and sent with heartbeats."""

from typing import ClassVar

from msgspec import Struct, field

from mandor.model.instance import instance_prefix
from mandor.model.meta import Object


class NodeUsage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """Current usage of a node, measured by its agent; CPU and network are averages since the previous report."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    network_in_bytes: int = 0
    """Bytes received per second."""
    network_out_bytes: int = 0
    """Bytes sent per second."""


class InstanceUsage(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    cpu_milli: int = 0
    memory_bytes: int = 0
    warming: bool = False
    """Whether the instance is not ready or was just started, so that its usage says nothing about the load."""


class GroupUsage(Struct, frozen=True, gc=False, omit_defaults=True, array_like=True):
    """Total usage of the ready instances of a group."""

    count: int = 0
    cpu_milli: int = 0
    memory_bytes: int = 0

    def __add__(self, other: "GroupUsage") -> "GroupUsage":
        return GroupUsage(
            self.count + other.count, self.cpu_milli + other.cpu_milli, self.memory_bytes + other.memory_bytes
        )


class UsageSummarySpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    groups: dict[str, GroupUsage] = {}
    """Usage by namespace and prefix of the instances' names: `default/web`, `default/shop-web`."""


def usage_key(namespace: str, workload: str, group: str) -> str:
    return f"{namespace}/{instance_prefix(workload, group)}"


class UsageSummaryStatus(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class UsageSummary(Object, frozen=True, tag="tally"):
    """Usage of the autoscaled groups on the nodes that report to one server. Its name is the server's id, with a number
    if one object would be too large.
    """

    kind: ClassVar[str] = "tally"
    plural: ClassVar[str] = "tallies"
    namespaced: ClassVar[bool] = False
    spec: UsageSummarySpec
    status: UsageSummaryStatus = field(default_factory=UsageSummaryStatus)

    @property
    def server(self) -> str:
        return self.meta.name.partition(".")[0]
