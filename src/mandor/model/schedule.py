"""Schedule: cron times of a recurring batch."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.cron import Cron
from mandor.model.meta import InvalidField

RUN_NAME_MOST = 48
"""Maximum length of the name of a workload with a schedule: the names of its runs append the time."""


class Schedule(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Starts a run at each of these times: a batch named after the workload and the time (UTC)."""

    cron: tuple[str, ...]
    """Cron expressions, `minute hour day month weekday` or @hourly, @daily …; a list of up to 16 combines their times.
    """
    timezone: str = "UTC"
    """Time zone of `cron`, for example `Asia/Jakarta`. Defaults to UTC. Times skipped by a clock change run after it;
    times that occur twice run once.
    """
    overlap: Literal["forbid", "allow", "replace"] = "forbid"
    """Handling of a run while the previous one is active: `forbid` skips the new run, `allow` runs both, `replace`
    stops the previous run. Defaults to `forbid`.
    """
    missed: Literal["skip", "run"] = "skip"
    """Handling of runs that could not start within a minute of their time: `skip` omits them, `run` starts one run
    for all of them. Defaults to `skip`.
    """
    keep: Annotated[int, Bounds(ge=0, le=100)] = 3
    """Number of succeeded runs, and of failed runs, to keep. Defaults to 3."""
    paused: bool = False
    """Whether new runs are suspended. Defaults to false."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.cron) <= 16:
            raise InvalidField(f"{len(self.cron)} cron expressions; 1 to 16 are allowed", "cron")
        try:
            self.times()
        except ValueError as error:
            about_zone = "time zone" in str(error)
            raise InvalidField(str(error), "timezone" if about_zone else "cron") from None

    def times(self) -> Cron:
        return Cron(self.cron, self.timezone)

    def __str__(self) -> str:
        return f"{'; '.join(self.cron)} ({self.timezone})"
