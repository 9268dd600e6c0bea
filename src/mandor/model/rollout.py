"""Roll-outs: what users order about one, and how far it is."""

from typing import Literal

from msgspec import Struct

RolloutPhase = Literal["Progressing", "Waiting", "Paused", "Done", "RollingBack", "RolledBack", "Failed"]
ONGOING: frozenset[str] = frozenset({"Progressing", "Waiting", "Paused", "RollingBack"})
FAILING: frozenset[str] = frozenset({"RollingBack", "RolledBack", "Failed"})
PROVEN_MOST = 10


class RolloutOrders(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Written by `mandor rollout`; an apply leaves them alone."""

    paused: bool = False
    """No instance is updated; crashes are still made good."""
    promoted: str = ""
    """The release whose canaries, or whose second set, somebody has found good."""
    aborted: str = ""
    """The release that somebody has given up."""


NO_ORDERS = RolloutOrders()


class GroupRollout(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """How far one group is."""

    wanted: int = 0
    updated: int = 0
    """Instances of the release that is wanted now."""
    healthy: int = 0
    """Those of them that have been ready for `min_healthy`."""
    best: int = 0
    """The most that were healthy at the same time: only more than that is progress."""
    progress_at: float = 0.0
    """When there was some, or when the clock began anew; 0: it stands still."""
    promoted: bool = False
    """It goes on after its canaries."""


class Rollout(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """The latest roll-out of a service."""

    phase: RolloutPhase = "Progressing"
    release: str
    """What is rolled out."""
    target: str
    """What instances become now: that release or, when it has failed, the last healthy one."""
    began_at: float = 0.0
    ended_at: float = 0.0
    fails_at: float = 0.0
    """If no further instance becomes healthy by then, it has failed; 0: nothing runs out."""
    failure: str = ""
    """Why it failed."""
    message: str = ""
    """A sentence for people."""
    proven: tuple[str, ...] = ()
    """Releases that were healthy as a whole, the latest last."""
    groups: dict[str, GroupRollout] = {}

    @property
    def ongoing(self) -> bool:
        return self.phase in ONGOING

    @property
    def frozen(self) -> bool:
        """It goes neither on nor back by itself."""
        return self.phase == "Paused" or (self.phase == "Failed" and self.target == self.release)

    @property
    def settled_on(self) -> str:
        """The release that all instances have; empty: they are being changed."""
        return self.target if self.phase in {"Done", "RolledBack"} else ""
