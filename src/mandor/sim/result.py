"""Result of one run of one strategy with one seed."""

from msgspec import Struct

from mandor.sim.history import PreemptionRecord, RunInterval, TimelineNote


class NodeState(Struct, frozen=True, gc=False, kw_only=True):
    """One node at the end of a phase; shares of what it may give, in percent."""

    ready: bool
    cpu_percent: float
    memory_percent: float
    """Requested."""
    used_percent: float
    """Of the machine's memory, really."""
    peak_percent: float
    """The most of it that was ever used in the phase."""
    instances: tuple[str, ...] = ()


class Waiting(Struct, frozen=True, gc=False, kw_only=True):
    instance: str
    priority: int
    reason: str


class WorkloadState(Struct, frozen=True, gc=False, kw_only=True):
    """One workload over a phase."""

    priority: int
    wanted: int
    running: int
    """At its end."""
    down_seconds: float
    """Seconds without any running instance."""
    short_seconds: float
    """Seconds with fewer running instances than wanted."""


class PhaseResult(Struct, frozen=True, gc=False, kw_only=True):
    name: str
    begin: float
    end: float
    nodes: dict[str, NodeState]
    workloads: dict[str, WorkloadState]
    pending: tuple[Waiting, ...] = ()
    preemptions: tuple[PreemptionRecord, ...] = ()
    relaxed: tuple[tuple[str, str], ...] = ()
    """Instance and rule, as they were given up in it."""
    evictions: tuple[tuple[str, str], ...] = ()
    """Instance and node."""
    crossing_percent: float | None = None
    """Of the traffic between workloads, what goes from node to node; None: the scenario names none."""
    inversions: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    short_seconds: dict[str, float] = {}
    """By node: the longest stretch below its host-defence threshold."""

    @property
    def down_seconds(self) -> float:
        return sum(each.down_seconds for each in self.workloads.values())

    @property
    def cascade(self) -> int:
        return max((each.depth for each in self.preemptions), default=0)


class Failure(Struct, frozen=True, gc=False, kw_only=True):
    """An expectation that did not hold."""

    expectation: str
    strategy: str
    seed: int
    phase: str
    message: str


class RunResult(Struct, frozen=True, gc=False, kw_only=True):
    strategy: str
    seed: int
    digest: str
    phases: tuple[PhaseResult, ...]
    failures: tuple[Failure, ...] = ()
    stays: tuple[RunInterval, ...] = ()
    notes: tuple[TimelineNote, ...] = ()
    ready: dict[str, tuple[tuple[float, int], ...]] = {}

    @property
    def cost(self) -> tuple[float, ...]:
        """How bad it was: broken expectations, then what was down, weighed by how much it matters."""
        down = sum(
            each.down_seconds * (1 + each.priority) for phase in self.phases for each in phase.workloads.values()
        )
        return (len(self.failures), down, sum(len(phase.preemptions) for phase in self.phases))
