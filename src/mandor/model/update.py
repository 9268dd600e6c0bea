"""Update: how a group goes from one release to the next."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds, SecondsOrNever
from mandor.model.meta import Misfit
from mandor.model.share import Share, check_share, is_none, share_of

Strategy = Literal["rolling", "canary", "blue-green"]
Order = Literal["start-first", "stop-first"]

USUAL: Share = "25%"


class Update(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How its instances are replaced when the template changes."""

    strategy: Strategy | None = None
    """`rolling`: some at a time. `canary`: a few beside the others first, the rest when they are promoted.
    `blue-green`: a whole second set, then all of the first goes. Absent: `canary` if there is a number of them, else
    `rolling`."""
    max_surge: Share | None = None
    """So many more than wanted there may be, or so many percent (rounded up); absent: 25%, or none if others stop
    first."""
    max_unavailable: Share | None = None
    """So many fewer than wanted may be available, or so many percent (rounded down); absent: none, or 25% and at least
    one if others stop first."""
    min_healthy: Seconds = Seconds(10)
    """An instance counts as available when it has been ready for so long."""
    deadline: SecondsOrNever = SecondsOrNever(300)
    """If no further instance becomes available for so long, the roll-out has failed."""
    canary: Annotated[int, Bounds(ge=0, le=100_000)] = 0
    """So many instances try the new release first; absent: 1 with `strategy: canary`."""
    auto_promote: bool = False
    """Go on as soon as the canaries, or the second set, are available; else `mandor rollout promote` does."""
    auto_rollback: bool = True
    """Go back to the last release that was healthy when a roll-out fails; else it stops where it is."""
    order: Order | None = None
    """`start-first`: a new one is available before an old one stops. `stop-first`: the other way round. Absent:
    start-first, unless two of them could not run beside each other: volumes, fixed ports, gangs. With `stop-first`
    a drain stops first, too, and nobody moves for a better place."""

    def __post_init__(self) -> None:
        check_share(self.max_surge, "max_surge")
        check_share(self.max_unavailable, "max_unavailable")
        if self.deadline <= self.min_healthy:
            raise Misfit(
                f"a deadline of {self.deadline} is over before an instance can count as available",
                "deadline",
                hint=f"longer than `min_healthy`, which is {self.min_healthy}",
            )
        self._check_strategy()
        self._check_order()

    def _check_strategy(self) -> None:
        if self.canary and self.strategy in {"rolling", "blue-green"}:
            raise Misfit(
                f"a {self.strategy} update has no canaries",
                "canary",
                hint="write `strategy: canary`, or leave `canary` out",
            )
        given = next((name for name in ("max_surge", "max_unavailable", "order") if getattr(self, name)), None)
        if self.strategy == "blue-green" and given is not None:
            raise Misfit(
                f"`{given}` means nothing to a blue-green update: a whole second set starts beside the first",
                given,
                hint=f"leave `{given}` out",
            )

    def _check_order(self) -> None:
        if is_none(self.max_surge) and is_none(self.max_unavailable):
            raise Misfit(
                "with max_surge 0 and max_unavailable 0 no instance could ever be replaced",
                "max_unavailable",
                hint="one of them is at least 1",
            )
        if self.order == "start-first" and is_none(self.max_surge):
            raise Misfit("start-first needs room for one more", "max_surge", hint="at least 1, or `order: stop-first`")
        if self.order == "stop-first" and self.max_surge is not None and not is_none(self.max_surge):
            raise Misfit("stop-first starts none beside the others", "max_surge", hint="0, or `order: start-first`")
        if self.order == "stop-first" and is_none(self.max_unavailable):
            raise Misfit("stop-first takes one away first", "max_unavailable", hint="at least 1")

    @property
    def kind(self) -> Strategy:
        return self.strategy or ("canary" if self.canary else "rolling")

    @property
    def asks_for_beside(self) -> str:
        """The key that asks for new instances beside all old ones; empty: none does."""
        if self.kind != "rolling":
            return "strategy" if self.strategy else "canary"
        if self.order == "start-first":
            return "order"
        return "max_surge" if self.max_surge is not None and not is_none(self.max_surge) else ""

    def starts_first(self, *, apart: bool) -> bool:
        """`apart`: two instances cannot run beside each other."""
        if self.kind == "blue-green":
            return True
        if self.order is not None:
            return self.order == "start-first"
        if self.max_surge is not None:
            return not is_none(self.max_surge)
        return not apart

    def room(self, count: int, *, apart: bool) -> tuple[int, int]:
        """How many more than `count` there may be, and how many fewer may be available; never both none."""
        if self.kind == "blue-green":
            return count, 0
        start_first = self.starts_first(apart=apart)
        surge: Share = self.max_surge if self.max_surge is not None else USUAL if start_first else 0
        away: Share = self.max_unavailable if self.max_unavailable is not None else 0 if start_first else USUAL
        more, fewer = share_of(surge, count, up=True), share_of(away, count, up=False)
        return (more, fewer) if more or fewer else (0, 1)

    def canaries(self, count: int) -> int:
        """So many go first, and wait to be promoted."""
        if self.kind == "rolling":
            return 0
        return count if self.kind == "blue-green" else min(self.canary or 1, count)
