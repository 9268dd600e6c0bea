"""Rebalance: moves the instances that would gain most on other nodes, once or periodically."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Seconds
from mandor.model.features import needs
from mandor.model.instance import Instance
from mandor.model.meta import InvalidField, Key, Object

EVERY_LEAST = 60
NOW = "now"
"""Name of the object that `mandor rebalance` creates."""


class RebalanceSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Limits of a rebalance, and the gain that a move must have."""

    moves: Annotated[int, Bounds(ge=1, le=100)] = 10
    """Maximum number of instances to move; with `every`, per run. Defaults to 10."""
    min_gain: Annotated[int, Bounds(ge=1, le=100_000)] = 20
    """Minimum gain of a move, in points of the scheduler's scores as shown by `mandor explain`. Defaults to 20."""
    at_once: Annotated[int, Bounds(ge=1, le=10)] = 1
    """Maximum number of moves in progress, at most one per workload. Defaults to 1."""
    prefer: Annotated[bool, needs("rebalance-prefer")] = False
    """Whether only `prefer` rules count: instances move to nodes that their rules prefer, whatever else the nodes
    score. Defaults to false.
    """
    every: Seconds | None = None
    """Interval between runs, at least 1m. Defaults to a single run."""
    rest: Seconds = Seconds(3600)
    """Minimum time between two moves of the same instance. Defaults to 1h."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < EVERY_LEAST:
            raise InvalidField(f"the interval {self.every} is too short", "every", hint="at least 1m")


MoveState = Literal["Waiting", "Moving", "Moved", "CalledOff"]


class PlannedMove(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One move of a rebalance and its progress."""

    instance: str
    namespace: str
    uid: str
    workload: str
    source: str
    """Node that the instance leaves."""
    to: str
    gain: int
    """Gain in points: that of the instance itself, and those of the instances staying on both nodes."""
    own: int = 0
    because: str = ""
    """Plugins that contribute most to the gain: `NodeResourcesFit +48, ImageLocality -5`."""
    state: MoveState = "Waiting"
    why: str = ""
    """Reason why the move was cancelled."""

    @property
    def key(self) -> Key:
        return Key(Instance.kind, self.namespace, self.instance)


RebalancePhase = Literal["Planning", "Moving", "Resting", "Done"]


class RebalanceStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Progress of a rebalance, written by the rebalance controller."""

    phase: RebalancePhase = "Planning"
    """`Resting`: nothing moves until the next run."""
    planned_at: float = 0.0
    """Unix time of the last run; 0 if there was none."""
    next_at: float = 0.0
    """Unix time of the next run; 0 if there is none."""
    moves: tuple[PlannedMove, ...] = ()
    """Moves of the last run, in order."""
    moved: int = 0
    """Number of instances moved since the object was created."""
    message: str = ""


class Rebalance(Object, frozen=True, tag="rebalance"):
    """A request to rebalance the cluster. Deleting it cancels the remaining moves."""

    kind: ClassVar[str] = "rebalance"
    plural: ClassVar[str] = "rebalances"
    namespaced: ClassVar[bool] = False
    spec: RebalanceSpec = field(default_factory=RebalanceSpec)
    status: RebalanceStatus = field(default_factory=RebalanceStatus)
