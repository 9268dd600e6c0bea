"""Rollouts: users' commands and progress."""

from typing import Literal

from msgspec import Struct

RolloutPhase = Literal["Progressing", "Waiting", "Paused", "Done", "RollingBack", "RolledBack", "Failed"]
ONGOING: frozenset[str] = frozenset({"Progressing", "Waiting", "Paused", "RollingBack"})
FAILING: frozenset[str] = frozenset({"RollingBack", "RolledBack", "Failed"})
PROVEN_MOST = 10


class RolloutOrders(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Commands of `mandor rollout`; `apply` does not change them."""

    paused: bool = False
    """Whether the rollout is paused: no instance is updated, but failed instances are still replaced."""
    promoted: str = ""
    """Release that was promoted by a user after its canaries, or its second set of instances, proved good."""
    aborted: str = ""
    """Release that was aborted by a user."""


NO_ORDERS = RolloutOrders()


class GroupRollout(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Progress of one group."""

    wanted: int = 0
    updated: int = 0
    """Number of instances of the target release."""
    healthy: int = 0
    """Number of updated instances that have been ready for `min_healthy`."""
    best: int = 0
    """Highest number of healthy instances so far; only a higher number counts as progress."""
    progress_at: float = 0.0
    """Unix time of the last progress, or of the last restart of the deadline; 0 if no deadline is running."""
    promoted: bool = False
    """Whether the group continues after its canaries."""


class Rollout(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Latest rollout of a service or daemon."""

    phase: RolloutPhase = "Progressing"
    release: str
    """Release being rolled out."""
    target: str
    """Release that instances are changed to: `release`, or the last healthy one after a failure."""
    began_at: float = 0.0
    ended_at: float = 0.0
    fails_at: float = 0.0
    """Unix time at which the rollout fails unless another instance becomes healthy; 0 if there is no deadline."""
    failure: str = ""
    """Reason of the failure."""
    message: str = ""
    """Human-readable description."""
    proven: tuple[str, ...] = ()
    """Releases that were completely healthy, latest last."""
    groups: dict[str, GroupRollout] = {}

    @property
    def ongoing(self) -> bool:
        return self.phase in ONGOING

    @property
    def frozen(self) -> bool:
        """Whether the rollout neither continues nor rolls back automatically."""
        return self.phase == "Paused" or (self.phase == "Failed" and self.target == self.release)

    @property
    def settled_on(self) -> str:
        """Release of all instances; empty while they are being changed."""
        return self.target if self.phase in {"Done", "RolledBack"} else ""
