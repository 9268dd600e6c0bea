"""NodePool: what holds for all nodes of a pool: when they are maintained, and how many there are."""

from typing import Annotated, ClassVar

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.cron import Cron
from mandor.lib.quantity import Seconds
from mandor.model.machine import NAME_MOST, Machine, NodeAutoscale, PoolScaling
from mandor.model.meta import Misfit, Object, check_name

WINDOW_SECONDS_MOST = 7 * 86_400


class Window(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """At these times the nodes of the pool are emptied one after another, kept empty for a while, and given back."""

    cron: str
    """When it opens: five fields, `minute hour day month weekday`, or @daily, @weekly …"""
    timezone: str = "UTC"
    """As in `Asia/Jakarta`."""
    duration: Seconds = Seconds(3600)
    """So long it is open; then every node takes work again."""
    drain: Seconds = Seconds(600)
    """So long emptying a node may take, batches included; one that is not empty then is left out this time."""
    each: Seconds = Seconds(600)
    """So long a node is kept empty, for whoever works on it."""
    at_once: Annotated[int, Bounds(ge=1, le=1000)] = 1
    """So many nodes at the same time."""
    force: bool = False
    """What is still there after `drain` is stopped, and no budget is asked."""

    def __post_init__(self) -> None:
        try:
            self.times()
        except ValueError as error:
            raise Misfit(str(error), "timezone" if "time zone" in str(error) else "cron") from None
        if not 60 <= self.duration <= WINDOW_SECONDS_MOST:
            raise Misfit(f"{self.duration} is no length for a window", "duration", hint="1m to 7d")
        if self.each > self.duration:
            raise Misfit(
                f"each node is kept empty for {self.each}, and the window is over after {self.duration}",
                "each",
                hint="a longer `duration`, or a shorter `each`",
            )

    def times(self) -> Cron:
        return Cron([self.cron], self.timezone)


class NodePoolSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    maintenance: tuple[Window, ...] = ()
    """When its nodes are maintained; absent: never by themselves."""
    autoscale: NodeAutoscale | None = None
    """Machines on demand; absent: nodes come and go by others."""

    def __post_init__(self) -> None:
        if len(self.maintenance) > 16:
            raise ValueError("a pool has at most 16 maintenance windows")


class NodePoolStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the maintenance controller; `scaling` by the node autoscaler."""

    opened_at: float = 0.0
    """When the window opened that is open; 0: none is."""
    until: float = 0.0
    """When it closes."""
    done: tuple[str, ...] = ()
    """Nodes that had their turn in the window that is open, or was last."""
    left_out: tuple[str, ...] = ()
    """Those of them that could not be emptied."""
    next_at: float = 0.0
    """When the next window opens."""
    scaling: PoolScaling | None = None
    """The machines that were ordered; absent: none ever was."""


class NodePool(Object, frozen=True, tag="node-pool"):
    """Nodes belong to it by its name (`spec.pool`); it needs no object of its own unless there is something to say."""

    kind: ClassVar[str] = "node-pool"
    plural: ClassVar[str] = "node-pools"
    namespaced: ClassVar[bool] = False
    spec: NodePoolSpec = field(default_factory=NodePoolSpec)
    status: NodePoolStatus = field(default_factory=NodePoolStatus)

    def __post_init__(self) -> None:
        if self.spec.autoscale is not None:
            check_name(self.meta.name, "name of a pool that gets machines", NAME_MOST)

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.status.scaling.machines if self.status.scaling is not None else ()
