"""Update: how a group changes from one release to the next."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds, SecondsOrNever
from mandor.model.meta import InvalidField
from mandor.model.share import Share, check_share, is_none, share_of

Strategy = Literal["rolling", "canary", "blue-green"]
Order = Literal["start-first", "stop-first"]

USUAL: Share = "25%"


class Update(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How instances are replaced when the template changes."""

    strategy: Strategy | None = None
    """`rolling`: replaces some instances at a time. `canary`: starts a few new instances first and continues after
    promotion. `blue-green`: starts a full second set, then stops the first. Defaults to `canary` if `canary` is set,
    otherwise `rolling`.
    """
    max_surge: Share | None = None
    """Maximum number of additional instances during a rollout, as a number or a percentage (rounded up). Defaults to
    25%, or 0 with `order: stop-first`.
    """
    max_unavailable: Share | None = None
    """Maximum number of unavailable instances during a rollout, as a number or a percentage (rounded down). Defaults to
    0, or with `order: stop-first` to 25%, at least 1.
    """
    min_healthy: Seconds = Seconds(10)
    """Time that an instance must be ready before it counts as available; also applies to instances being moved.
    Defaults to 10s.
    """
    deadline: SecondsOrNever = SecondsOrNever(300)
    """Time within which another instance must become available, or the rollout fails; `never` disables it. Defaults to
    5m.
    """
    canary: Annotated[int, Bounds(ge=0, le=100_000)] = 0
    """Number of canaries. Defaults to 1 with `strategy: canary`."""
    auto_promote: bool = False
    """Whether the rollout continues as soon as the canaries, or the second set, are available; otherwise it waits for
    `mandor rollout promote`. Defaults to false.
    """
    auto_rollback: bool = True
    """Whether a failed rollout returns to the last healthy release; otherwise it stops. Defaults to true."""
    order: Order | None = None
    """`start-first`: a new instance is available before an old one stops. `stop-first`: the old one stops first, also
    in a drain, and instances are not moved for a better placement. Defaults to `start-first`, or to `stop-first` if
    two instances cannot run side by side (volumes, fixed ports, gangs).
    """

    def __post_init__(self) -> None:
        check_share(self.max_surge, "max_surge")
        check_share(self.max_unavailable, "max_unavailable")
        if self.deadline <= self.min_healthy:
            raise InvalidField(
                f"the deadline {self.deadline} ends before an instance can become available",
                "deadline",
                hint=f"set it longer than `min_healthy`, which is {self.min_healthy}",
            )
        self._check_strategy()
        self._check_order()

    def _check_strategy(self) -> None:
        if self.canary and self.strategy in {"rolling", "blue-green"}:
            raise InvalidField(
                f"`canary` cannot be combined with `strategy: {self.strategy}`",
                "canary",
                hint="set `strategy: canary`, or remove `canary`",
            )
        given = next((name for name in ("max_surge", "max_unavailable", "order") if getattr(self, name)), None)
        if self.strategy == "blue-green" and given is not None:
            raise InvalidField(
                f"`{given}` cannot be combined with `strategy: blue-green`, which starts a full second set",
                given,
                hint=f"remove `{given}`",
            )

    def _check_order(self) -> None:
        if is_none(self.max_surge) and is_none(self.max_unavailable):
            raise InvalidField(
                "with `max_surge: 0` and `max_unavailable: 0` no instance could ever be replaced",
                "max_unavailable",
                hint="set one of them to at least 1",
            )
        if self.order == "start-first" and is_none(self.max_surge):
            raise InvalidField(
                "`order: start-first` requires `max_surge`", "max_surge", hint="at least 1, or `order: stop-first`"
            )
        if self.order == "stop-first" and self.max_surge is not None and not is_none(self.max_surge):
            raise InvalidField(
                "`order: stop-first` excludes `max_surge`", "max_surge", hint="0, or `order: start-first`"
            )
        if self.order == "stop-first" and is_none(self.max_unavailable):
            raise InvalidField("`order: stop-first` requires `max_unavailable`", "max_unavailable", hint="at least 1")

    @property
    def kind(self) -> Strategy:
        return self.strategy or ("canary" if self.canary else "rolling")

    @property
    def surge_key(self) -> str:
        """The key that requests new instances in addition to all old ones; empty if there is none."""
        if self.kind != "rolling":
            return "strategy" if self.strategy else "canary"
        if self.order == "start-first":
            return "order"
        return "max_surge" if self.max_surge is not None and not is_none(self.max_surge) else ""

    def starts_first(self, *, apart: bool) -> bool:
        """Return whether new instances start before old ones stop. `apart` means that two instances cannot run side by
        side.
        """
        if self.kind == "blue-green":
            return True
        if self.order is not None:
            return self.order == "start-first"
        if self.max_surge is not None:
            return not is_none(self.max_surge)
        return not apart

    def room(self, count: int, *, apart: bool) -> tuple[int, int]:
        """Return how many instances there may be above `count`, and how many may be unavailable; never 0 for both."""
        if self.kind == "blue-green":
            return count, 0
        start_first = self.starts_first(apart=apart)
        surge: Share = self.max_surge if self.max_surge is not None else USUAL if start_first else 0
        away: Share = self.max_unavailable if self.max_unavailable is not None else 0 if start_first else USUAL
        more, fewer = share_of(surge, count, up=True), share_of(away, count, up=False)
        return (more, fewer) if more or fewer else (0, 1)

    def canaries(self, count: int) -> int:
        """Return the number of instances that start first and wait for promotion."""
        if self.kind == "rolling":
            return 0
        return count if self.kind == "blue-green" else min(self.canary or 1, count)
