"""NodePool: maintenance windows and autoscaling of the nodes in a pool."""

from typing import Annotated, ClassVar

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.cron import Cron
from mandor.lib.quantity import Seconds
from mandor.model.machine import NAME_MOST, Machine, NodeAutoscale, PoolScaling
from mandor.model.meta import InvalidField, Object, check_name

WINDOW_SECONDS_MOST = 7 * 86_400


class Window(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A maintenance window: the pool's nodes are drained one after another, kept empty for a while, and reopened."""

    cron: str
    """Cron expression of the opening times: `minute hour day month weekday`, or @daily, @weekly …"""
    timezone: str = "UTC"
    """Time zone of `cron`, for example `Asia/Jakarta`. Defaults to UTC."""
    duration: Seconds = Seconds(3600)
    """Length of the window, 1m to 7d; afterwards all nodes are reopened. Defaults to 1h."""
    drain: Seconds = Seconds(600)
    """Time limit for draining a node, including batches. A node that is not empty by then is skipped in this window.
    Defaults to 10m.
    """
    each: Seconds = Seconds(600)
    """Time that each node is kept empty for maintenance work. Defaults to 10m."""
    at_once: Annotated[int, Bounds(ge=1, le=1000)] = 1
    """Number of nodes maintained at the same time. Defaults to 1."""
    force: bool = False
    """Whether instances that remain after `drain` are stopped without regard to disruption budgets. Defaults to false.
    """

    def __post_init__(self) -> None:
        try:
            self.times()
        except ValueError as error:
            raise InvalidField(str(error), "timezone" if "time zone" in str(error) else "cron") from None
        if not 60 <= self.duration <= WINDOW_SECONDS_MOST:
            raise InvalidField(f"the duration {self.duration} is out of range", "duration", hint="1m to 7d")
        if self.each > self.duration:
            raise InvalidField(
                f"each node is kept empty for {self.each}, but the window lasts only {self.duration}",
                "each",
                hint="increase `duration` or decrease `each`",
            )

    def times(self) -> Cron:
        return Cron([self.cron], self.timezone)


class NodePoolSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    maintenance: tuple[Window, ...] = ()
    """Maintenance windows, at most 16. Defaults to none."""
    autoscale: NodeAutoscale | None = None
    """Orders machines on demand. Absent: the number of nodes is managed outside Mandor."""

    def __post_init__(self) -> None:
        if len(self.maintenance) > 16:
            raise ValueError(f"{len(self.maintenance)} maintenance windows; at most 16 are allowed")


class NodePoolStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of a pool, written by the maintenance controller; `scaling` is written by the node autoscaler."""

    opened_at: float = 0.0
    """Unix time at which the open window opened; 0 if none is open."""
    until: float = 0.0
    """Unix time at which the open window closes."""
    done: tuple[str, ...] = ()
    """Nodes that had their turn in the open window, or in the last one."""
    left_out: tuple[str, ...] = ()
    """Nodes of `done` that could not be drained in time."""
    next_at: float = 0.0
    """Unix time at which the next window opens."""
    scaling: PoolScaling | None = None
    """State of ordered machines; absent if none was ever ordered."""


class NodePool(Object, frozen=True, tag="node-pool"):
    """Settings of a node pool. Nodes belong to a pool by its name (`spec.pool`); the object is needed only for
    settings.
    """

    kind: ClassVar[str] = "node-pool"
    plural: ClassVar[str] = "node-pools"
    namespaced: ClassVar[bool] = False
    spec: NodePoolSpec = field(default_factory=NodePoolSpec)
    status: NodePoolStatus = field(default_factory=NodePoolStatus)

    def __post_init__(self) -> None:
        if self.spec.autoscale is not None:
            check_name(self.meta.name, "name of a pool with `autoscale`", NAME_MOST)

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.status.scaling.machines if self.status.scaling is not None else ()
