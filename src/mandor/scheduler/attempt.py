"""The record of one instance on its way from the scheduling queue to its node."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.framework.context import Context
from mandor.placement.framework.points import ClusterEvent, Plugin
from mandor.placement.framework.request import PlacementRequest, Shape


class AttemptState(Enum):
    """The state of an attempt.

    The direct way is ACTIVE, DECIDING, BINDING. An attempt leaves it for UNSCHEDULABLE when no node fits, and for
    BACKING_OFF after a fault or a lost race; both lead back to ACTIVE. The values are labels of a metric.
    """

    ACTIVE = "active"
    """Ready for a decision."""
    BACKING_OFF = "backing off"
    """Pausing; the pause grows with each failure."""
    UNSCHEDULABLE = "unschedulable"
    """No node fits: waiting for a cluster event that can change that."""
    GATED = "gated"
    """Kept out of the queue by a PreEnqueue plugin."""
    CONSULTING = "asked about"
    """Waiting for answers that plugins need from outside."""
    PARKED = "parked"
    """Another member of the gang is in the queue on behalf of all members."""
    DECIDING = "decided on"
    """In a scheduling cycle that takes several turns."""
    OUT = "nowhere"
    """Taken out of the queue, for a cycle of one turn."""
    BINDING = "binding"
    """A node is assigned and counted in the table; the bind is not written yet."""


@dataclass(slots=True, eq=False)
class Attempt:
    """The attempt to give an instance a node: queued, decided and bound as one record.

    A failed attempt returns to the queue as the same object with `failures` increased. An instance that is replaced by
    another one of the same name gets a new record, so identity tells the two apart.
    """

    request: PlacementRequest
    uid: str
    queued_at: float
    """Wall time when the instance was created."""
    state: AttemptState = AttemptState.OUT
    ticket: int = 0
    """Number of the only valid heap item of this attempt; items with other numbers are skipped."""

    # Why the last decision gave no node, and what makes the next one worthwhile.
    failures: int = 0
    failed_at: float = 0.0
    """Monotonic time of the last failure."""
    retry_on: frozenset[ClusterEvent] = frozenset()
    blamed: tuple[Plugin, ...] = ()
    """Plugins that refused the instance last."""
    by_node: bool = False
    """The refusing plugins check each node on its own (see `Decision.by_node`)."""
    patient_from: float | None = None
    """Monotonic time since when the instance waits for room that stopping instances will free."""
    wake_at: float | None = None
    """Monotonic time of the next try, whatever happens until then."""
    consulted: Mapping[str, object] | None = None
    """Answers from outside for the next decision, by plugin."""

    # The assigned node, valid in state BINDING.
    instance: Instance | None = None
    """The instance as it was when the node was assigned."""
    node: str = ""
    node_version: int = 0
    relaxed: tuple[str, ...] = ()
    """Soft rules that were given up."""
    context: Context | None = None
    """State for the plugins of the remaining points; None: no plugin takes part."""
    shape: Shape | None = None
    """The chosen form; None: the main form."""
    ports: dict[str, int] | None = None
    """Chosen ports of the node, by name."""

    @property
    def key(self) -> Key:
        return self.request.key

    @property
    def number(self) -> int:
        """The number of the current try, counted from 1."""
        return self.failures + 1

    def assign(
        self,
        instance: Instance,
        node: str,
        node_version: int,
        relaxed: tuple[str, ...] = (),
        context: Context | None = None,
        shape: Shape | None = None,
        ports: dict[str, int] | None = None,
    ) -> None:
        self.instance, self.node, self.node_version = instance, node, node_version
        self.relaxed, self.context, self.shape, self.ports = relaxed, context, shape, ports
        self.state = AttemptState.BINDING

    def bound(self, *, at: float, newer: Instance | None = None) -> Instance:
        """Return the instance bound to the assigned node; `newer`: the instance as stored now, if it has changed."""
        instance, request = newer or self.instance, self.request
        assert instance is not None, "a node is assigned"
        volumes = tuple(sorted(wanted.key.name for wanted in request.local_volumes)) if request.shape.volumes else ()
        variant = self.shape.variant if self.shape is not None else 0
        return instance.bound(
            self.node, at=at, relaxed=self.relaxed, volumes=volumes, variant=variant, ports=self.ports
        )
