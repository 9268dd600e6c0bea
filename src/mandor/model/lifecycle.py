"""Lifecycle settings of a group: restarts, replacement, lost nodes, disruptions and gangs."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import NEVER, Seconds, SecondsOrNever
from mandor.model.features import needs
from mandor.model.meta import InvalidField
from mandor.model.share import Share, check_share, share_of

GANG_SECONDS_MOST = 86_400


class Restart(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Restarts of tasks in place. The delay doubles from `delay` to `max_delay`; after `attempts` restarts within
    `interval` the instance has failed.
    """

    policy: Literal["always", "on-failure", "never"] | None = None
    """Restart condition: `always`, `on-failure` or `never`. Defaults to `on-failure` for a batch, otherwise
    `always`.
    """
    attempts: Annotated[int, Bounds(ge=0, le=10_000)] = 10
    """Maximum number of restarts within `interval` before the instance fails. Defaults to 10."""
    interval: Seconds = Seconds(1800)
    """Period in which restarts are counted. Defaults to 30m."""
    delay: Seconds = Seconds(10)
    """Delay before the first restart; doubled for each further one. Defaults to 10s."""
    max_delay: Seconds = Seconds(300)
    """Maximum delay. Defaults to 5m."""

    def __post_init__(self) -> None:
        if self.max_delay < self.delay:
            raise ValueError(f"max_delay {self.max_delay} is shorter than delay {self.delay}")


class Reschedule(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Replacement of instances that ended, on other nodes. The delay doubles from `delay` to `max_delay`."""

    delay: Seconds = Seconds(30)
    """Delay before the first replacement; doubled for each further one. Defaults to 30s."""
    max_delay: Seconds = Seconds(3600)
    """Maximum delay. Defaults to 1h."""
    attempts: Annotated[Annotated[int, Bounds(ge=0, le=10_000)] | None, needs("reschedule-attempts")] = None
    """Maximum number of replacements of an instance that ended by itself; with 0 it stays ended. An instance of a lost
    node is always replaced. Defaults to no limit.
    """


class Disconnect(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Handling of instances whose node sends no heartbeats."""

    lost_after: Seconds | None = None
    """Time without heartbeats after which the instance is Lost. Defaults to the cluster's setting."""
    stop_after: SecondsOrNever = NEVER
    """Time without a connection to the control plane after which the node itself stops the instance, even if its agent
    is dead. Defaults to `never`.
    """
    replace: bool = True
    """Whether a lost instance is replaced on another node. Defaults to true."""
    reconcile: Literal["keep-replacement"] = "keep-replacement"
    """A node that returns stops the instances that were replaced."""


class Disruption(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Limits on voluntary disruptions: drains, rebalancing, rollouts and preemption."""

    max_unavailable: Share | None = None
    """Maximum number of unavailable instances, as a number or a percentage (`25%`, rounded up). Defaults to no limit.
    Preemption exceeds it only if there is no other way.
    """
    preempt: Literal["last", "never"] = "last"
    """`last`: instances of higher priority may preempt these as a last resort. `never`: they may not. Defaults to
    `last`.
    """

    def __post_init__(self) -> None:
        check_share(self.max_unavailable, "max_unavailable")

    def most_unavailable(self, wanted: int) -> int | None:
        """Return the limit for this many instances; fractions are rounded up, as in Kubernetes."""
        most = self.max_unavailable
        return None if most is None else share_of(most, wanted, up=True)


class Gang(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Gang scheduling: the group's instances are placed together or not at all."""

    min: Annotated[int, Bounds(ge=1, le=100_000)] | None = None
    """Minimum number of instances placed together. Defaults to all."""
    timeout: Seconds = Seconds(300)
    """Time that fewer than `min` instances may hold nodes, for example after a node was lost, before they release them;
    1s to 24h. Defaults to 5m.
    """

    def __post_init__(self) -> None:
        if not 1 <= self.timeout <= GANG_SECONDS_MOST:
            raise InvalidField(f"the timeout {self.timeout} is out of range", "timeout", hint="1s to 24h")
