"""Schedule: when a batch runs, again and again."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.cron import Cron
from mandor.model.meta import Misfit

RUN_NAME_MOST = 48
"""The name of a workload with a schedule: its runs have the time at the end of theirs."""


class Schedule(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """At these times a run begins: a batch of its own, called after the workload and the time (UTC)."""

    cron: tuple[str, ...]
    """Five fields, `minute hour day month weekday`, or @hourly, @daily …; several, in a list, add up."""
    timezone: str = "UTC"
    """As in `Asia/Jakarta`; a time that a change of the clocks skips runs after it, one that comes twice runs once."""
    overlap: Literal["forbid", "allow", "replace"] = "forbid"
    """While a run goes on: `forbid` leaves the next one out, `allow` runs both, `replace` ends the old one."""
    missed: Literal["skip", "run"] = "skip"
    """What could not begin within a minute of its time is left out, or made up for: once, however many there were."""
    keep: Annotated[int, Bounds(ge=0, le=100)] = 3
    """So many runs that have succeeded are kept to look at, and so many that have failed."""
    paused: bool = False
    """No run begins."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.cron) <= 16:
            raise Misfit("a schedule has 1 to 16 cron expressions", "cron")
        try:
            self.times()
        except ValueError as error:
            about_zone = "time zone" in str(error)
            raise Misfit(str(error), "timezone" if about_zone else "cron") from None

    def times(self) -> Cron:
        return Cron(self.cron, self.timezone)

    def __str__(self) -> str:
        return f"{'; '.join(self.cron)} ({self.timezone})"
