"""Rebalance: an order to move the few instances that would stand best elsewhere; once, or every so often."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Seconds
from mandor.model.instance import Instance
from mandor.model.meta import Key, Misfit, Object

EVERY_LEAST = 60
NOW = "now"
"""The name of the order that `mandor rebalance` gives."""


class RebalanceSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How much may move, and for how much."""

    moves: Annotated[int, Bounds(ge=1, le=100)] = 10
    """So many instances move at most; with `every`, each time."""
    min_gain: Annotated[int, Bounds(ge=1, le=100_000)] = 20
    """A move is worth its while from so many points of the scheduler's scores on, as `mandor explain` shows them."""
    at_once: Annotated[int, Bounds(ge=1, le=10)] = 1
    """So many are on their way at the same time; of one workload never more than one."""
    every: Seconds | None = None
    """Look again so often, as long as this order stands; absent: once."""
    rest: Seconds = Seconds(3600)
    """Whoever was moved stays where it is for so long, at least."""

    def __post_init__(self) -> None:
        if self.every is not None and self.every < EVERY_LEAST:
            raise Misfit(f"{self.every} is too often to rebalance", "every", hint="1m or more")


MoveState = Literal["Waiting", "Moving", "Moved", "CalledOff"]


class PlannedMove(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One move of a rebalance, and how far it is."""

    instance: str
    namespace: str
    uid: str
    workload: str
    source: str
    """The node it leaves."""
    to: str
    gain: int
    """In points: its own, and what those gain or lose by it who stay on the two nodes."""
    own: int = 0
    because: str = ""
    """Whose scores make most of it: `NodeResourcesFit +48, ImageLocality -5`."""
    state: MoveState = "Waiting"
    why: str = ""
    """Of one that was called off."""

    @property
    def key(self) -> Key:
        return Key(Instance.kind, self.namespace, self.instance)


RebalancePhase = Literal["Planning", "Moving", "Resting", "Done"]


class RebalanceStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the rebalance controller."""

    phase: RebalancePhase = "Planning"
    """Resting: nothing moves until it looks again."""
    planned_at: float = 0.0
    """When it last looked; 0: not yet."""
    next_at: float = 0.0
    """When it looks again; 0: never."""
    moves: tuple[PlannedMove, ...] = ()
    """What was found then, in the order in which it is carried out."""
    moved: int = 0
    """So many have moved since the order was given."""
    message: str = ""


class Rebalance(Object, frozen=True, tag="rebalance"):
    """Deleting it cancels what has not happened yet."""

    kind: ClassVar[str] = "rebalance"
    plural: ClassVar[str] = "rebalances"
    namespaced: ClassVar[bool] = False
    spec: RebalanceSpec = field(default_factory=RebalanceSpec)
    status: RebalanceStatus = field(default_factory=RebalanceStatus)
