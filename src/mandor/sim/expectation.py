"""What is expected of a run, as scenarios say it."""

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
    """Everything it says has to hold, in every seed, for these strategies and in these phases; absent: all."""

    name: str = ""
    strategy: tuple[str, ...] = ()
    phase: tuple[str, ...] = ()
    after: Seconds = Seconds(300)
    """From so long after the beginning of the phase until its end; what is settled is looked at there."""
    running: tuple[str, ...] = ()
    """All of these run, all the time."""
    any_running: tuple[str, ...] = ()
    """At least one of these runs, all the time."""
    apart: tuple[str, ...] = ()
    """No two of these run on one node."""
    nodes: tuple[str, ...] = ()
    """`apart` holds whenever these have been up for `after`, whatever the phase."""
    no_inversion: bool = False
    """At the end of the phase, nothing runs in the place of something pending that matters more and could use it."""
    only_must_blocks: bool = False
    """At the end of the phase, nothing is pending that would fit if only rules that are `must` counted."""
    host_safe: Seconds | None = None
    """No node is below its host-defence threshold for longer than that."""
    same_placement: bool = False
    """The same seed gives the same history."""
    pending_most: Count | None = None
    """So many wait at the end of the phase."""
    preemptions_most: Count | None = None
    """So many make room for others in the phase."""
    cascade_most: Count | None = None
    """No preemption sets off a longer chain of others."""
    downtime_most: dict[str, Seconds] = {}
    """By workload: seconds without a single instance, in the phase."""
    availability_least: dict[str, Percent] = {}
    """By workload, its service level: so much of the phase at least one instance serves. What is left of the phase is
    its error budget."""
    instances: dict[str, Counts] = {}
    """By workload: so many serve at the end of the phase."""
    empty: tuple[str, ...] = ()
    """On these nodes nothing runs at the end of the phase."""
    utilisation: dict[str, Between] = {}
    """By node: requested memory, in percent of what it may give."""

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
        counted = ("host_safe", "pending_most", "preemptions_most", "cascade_most")
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
