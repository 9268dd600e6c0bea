"""Expectations of a scenario about its runs."""

from typing import Annotated

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.meta import InvalidField

Count = Annotated[int, Bounds(ge=0)]
Percent = Annotated[float, Bounds(ge=0, le=100)]


class Between(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    least: Percent = 0.0
    most: Percent = 100.0


class Counts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    least: Count = 0
    most: Count = 1_000_000


class Expectation(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Conditions that must all hold in every seed, for the named strategies and phases; absent: all of them."""

    name: str = ""
    strategy: tuple[str, ...] = ()
    phase: tuple[str, ...] = ()
    after: Seconds = Seconds(300)
    """Time after the start of the phase from which the conditions must hold until its end."""
    running: tuple[str, ...] = ()
    """Workloads that run all the time."""
    any_running: tuple[str, ...] = ()
    """Workloads of which at least one runs all the time."""
    apart: tuple[str, ...] = ()
    """Workloads of which no two run on the same node."""
    nodes: tuple[str, ...] = ()
    """`apart` applies while these nodes have been up for `after`, in any phase."""
    no_inversion: bool = False
    """At the end of the phase, no instance holds resources that a pending instance of higher priority could use."""
    only_must_blocks: bool = False
    """At the end of the phase, no pending instance would fit if only `must` rules applied."""
    host_safe: Seconds | None = None
    """Longest time for which a node may be below its eviction threshold."""
    same_placement: bool = False
    """Two runs of the same seed have the same history."""
    pending_most: Count | None = None
    """Maximum of pending instances at the end of the phase."""
    preemptions_most: Count | None = None
    """Maximum of preempted instances in the phase."""
    cascade_most: Count | None = None
    """Maximum length of a chain of preemptions."""
    downtime_most: dict[str, Seconds] = {}
    """Maximum time without any running instance in the phase, by workload."""
    availability_least: dict[str, Percent] = {}
    """Minimum percentage of the phase in which at least one instance is ready, by workload."""
    instances: dict[str, Counts] = {}
    """Number of ready instances at the end of the phase, by workload."""
    empty: tuple[str, ...] = ()
    """Nodes on which no instance runs at the end of the phase."""
    utilisation: dict[str, Between] = {}
    """Requested memory in percent of the allocatable memory at the end of the phase, by node."""
    crossing_most: Percent | None = None
    """Maximum percentage of the traffic that crosses nodes at the end of the phase."""
    evicted: tuple[str, ...] | None = None
    """The only workloads of which host defence may evict instances in the phase; an empty list: none."""

    def __post_init__(self) -> None:
        if self.nodes and not self.apart:
            raise InvalidField("`nodes` belongs to `apart`", "nodes")
        if len(self.apart) == 1:
            raise InvalidField("one workload is not apart from anything", "apart")
        if not self.claims:
            raise InvalidField("it expects nothing", "name", hint="`running: [NAME]`, `no_inversion: true` …")

    @property
    def claims(self) -> list[str]:
        plain = ("running", "any_running", "apart", "no_inversion", "only_must_blocks", "same_placement", "empty")
        counted = ("host_safe", "pending_most", "preemptions_most", "cascade_most", "crossing_most", "evicted")
        found = [each for each in plain if getattr(self, each)]
        found += [each for each in counted if getattr(self, each) is not None]
        named = ("downtime_most", "availability_least", "instances", "utilisation")
        return found + [each for each in named if getattr(self, each)]

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        said = []
        for claim in self.claims:
            value = getattr(self, claim)
            shown = ", ".join(value) if isinstance(value, tuple | dict) else "" if value is True else str(value)
            said.append(f"{claim.replace('_', ' ')} {shown}".strip())
        return "; ".join(said)
