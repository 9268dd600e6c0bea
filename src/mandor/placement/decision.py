"""The result of a decision, and the time at which it is made."""

from msgspec import Struct, field, structs

from mandor.model.instance import UNSCHEDULABLE
from mandor.model.meta import Key
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import ClusterEvent, Plugin
from mandor.placement.framework.request import PlacementRequest

NOMINATED = "Nominated"
"""The reason of an instance without a node for which room is held on one."""


class Moment(Struct, frozen=True):
    """The time of a decision, and how long the instance may still wait."""

    now: float = 0.0
    """Wall time."""
    patience: float = 0.0
    """Seconds that the instance may wait for stopping instances rather than give up a rule."""


NOW = Moment()


class Decision(Struct, frozen=True, eq=False):
    """The node of an instance, or the reason why it has none."""

    key: Key
    node: str = ""
    """Empty: no node."""
    message: str = ""
    """Why there is no node; for an instance placed in an alternative form, why the forms before it do not fit."""
    relaxed: tuple[str, ...] = ()
    """Soft rules that were given up, in order."""
    retry_on: frozenset[ClusterEvent] = frozenset()
    """Events that make another try worthwhile."""
    blamed: tuple[Plugin, ...] = ()
    """Plugins that refused nodes; their hints decide whether an event is worth another try."""
    by_node: bool = False
    """All refusing plugins check each node on its own, so that events on a node that is ruled out do not matter."""
    fault: str = ""
    """The plugin that failed; the decision is repeated later."""
    reason: str = UNSCHEDULABLE
    """Why there is no node, as one word for programs."""
    nominated: str = ""
    """The node where room will be free."""
    victims: tuple[Key, ...] = ()
    """Instances to be preempted for the nomination."""
    displaces: bool = False
    """The node's room was held for pending instances of lower priority."""
    again: float | None = None
    """Seconds after which the decision is repeated without an event."""
    request: PlacementRequest | None = None
    """The request in the chosen form, without the rules that were given up."""
    state: CycleState = field(default_factory=CycleState)
    """State of the plugins for the later points."""

    def __eq__(self, other: object) -> bool:
        """Compare all fields but the request and the plugins' state."""
        return isinstance(other, Decision) and structs.astuple(self)[:-2] == structs.astuple(other)[:-2]

    __hash__ = None  # type: ignore[assignment]


def broken_off(key: Key, plugin: str) -> Decision:
    """Return the decision after a plugin was interrupted for exceeding its time budget."""
    return Decision(key, message=f"the plugin {plugin} exceeded its time limit and was interrupted", fault=plugin)
