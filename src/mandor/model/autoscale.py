"""Autoscale: how the count of a group follows its load."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Percent, Seconds
from mandor.model.meta import Misfit

PERCENT_MOST = 1000
WINDOW_SECONDS_MOST = 3600
QUERY_MOST = 4096


def _check_percent(name: str, value: Percent | None) -> None:
    if value is not None and not 1 <= value <= PERCENT_MOST:
        raise Misfit(f"{value} is no share", name, hint=f"1% to {PERCENT_MOST}%")


class Metric(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A number that a Prometheus server answers with."""

    query: Annotated[str, Bounds(max_length=QUERY_MOST)]
    """PromQL with one number as its answer: `sum(rate(http_requests_total{job="shop"}[1m]))`."""
    target: float
    """So much of it one instance can bear."""
    url: str = ""
    """Where Prometheus is: `http://prometheus:9090`; absent: where the server's settings say."""
    average: bool = False
    """The answer is about one instance already, as a latency is; else it is the total, which they share."""

    def __post_init__(self) -> None:
        if not self.query.strip():
            raise Misfit("the query is empty", "query", hint='PromQL: `sum(rate(http_requests_total{job="shop"}[1m]))`')
        if not 0 < self.target < 1e15:
            raise Misfit(f"{self.target:g} is no target", "target", hint="more than 0: what one instance can bear")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise Misfit(f"{self.url[:60]!r} is no address of a Prometheus server", "url", hint="http://HOST:9090")
        if "@" in self.url:
            raise Misfit("an address in a manifest carries no password", "url", hint="leave the part before `@` out")


class ScalePace(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """How fast a count moves in one direction. With both limits, the larger step counts."""

    window: Seconds | None = None
    """The count follows the most careful answer of so long a time; absent: 0s to grow, 5m to shrink."""
    instances: Annotated[int, Bounds(ge=1, le=100_000)] | None = None
    """At most so many within `per`."""
    percent: Percent | None = None
    """At most so many percent of what there was, within `per`. Absent, as `instances`: 4 or 100% in 15s to grow, and
    any number to shrink."""
    per: Seconds = Seconds(60)
    """The time that the limits are about."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window > WINDOW_SECONDS_MOST:
            raise Misfit(f"a window of {self.window} is too long", "window", hint="at most 1h")
        if not 1 <= self.per <= WINDOW_SECONDS_MOST:
            raise Misfit(f"`per` is 1s to 1h, not {self.per}", "per")
        _check_percent("percent", self.percent)

    def over(self, usual: "ScalePace") -> "ScalePace":
        """With what is usual where it says nothing."""
        unlimited = self.instances is None and self.percent is None
        limits = usual if unlimited else self
        return ScalePace(
            window=usual.window if self.window is None else self.window,
            instances=limits.instances,
            percent=limits.percent,
            per=limits.per,
        )


UP = ScalePace(window=Seconds(0), instances=4, percent=Percent(100), per=Seconds(15))
DOWN = ScalePace(window=Seconds(300))


class Autoscale(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The count follows the load, between `min` and `max`: whatever asks for most instances decides."""

    max: Annotated[int, Bounds(ge=1, le=100_000)]
    """Never more."""
    min: Annotated[int, Bounds(ge=0, le=100_000)] = 1
    """Never fewer; 0 only with a `metric` alone that is a total, for nobody uses anything then."""
    cpu: Percent | None = None
    """So much of the CPU they ask for are they to use on average: `70%`."""
    memory: Percent | None = None
    """So much of the memory they ask for are they to use on average: `80%`."""
    metric: Metric | None = None
    """What a Prometheus server says."""
    tolerance: Percent = Percent(10)
    """So far off the target nothing is done."""
    up: ScalePace = ScalePace()
    """How fast it grows; absent: at once, by 4 or 100% in 15s, whatever is more."""
    down: ScalePace = ScalePace()
    """How fast it shrinks; absent: to the most that was needed within 5m."""

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise Misfit(f"`min` is {self.min} and `max` is {self.max}", "min", hint=f"at most {self.max}")
        if self.cpu is None and self.memory is None and self.metric is None:
            raise Misfit(
                "there is nothing to scale by", hint="at least one of `cpu: 70%`, `memory: 80%`, `metric: {…}`"
            )
        for name in ("cpu", "memory"):
            _check_percent(name, getattr(self, name))
        if self.tolerance > 100:
            raise Misfit(f"a tolerance of {self.tolerance} is too much", "tolerance", hint="0%…100%")
        total = self.metric is not None and not self.metric.average and self.cpu is None and self.memory is None
        if self.min == 0 and not total:
            raise Misfit(
                "with no instance there is no usage to scale by",
                "min",
                hint="at least 1, or a `metric` that is a total, without `cpu` and `memory`",
            )

    @property
    def growing(self) -> ScalePace:
        return self.up.over(UP)

    @property
    def shrinking(self) -> ScalePace:
        return self.down.over(DOWN)

    def clamp(self, count: int) -> int:
        return min(max(count, self.min), self.max)


AutoscaleReason = Literal["Steady", "Scaled", "Limited", "Settling", "NoMetrics", "AtMost", "AtLeast"]


class Reading(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One measure, as it was when the count was last thought about."""

    name: Literal["cpu", "memory", "metric"]
    current: float | None = None
    """In percent of what they ask for, or what a metric is for one instance; absent: it is not known."""
    target: float
    problem: str = ""
    """Why it is not known."""


class AutoscaleStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the autoscaler, for one group."""

    reason: AutoscaleReason
    message: str = ""
    """What it does, and why not more."""
    readings: tuple[Reading, ...] = ()
    last_at: float = 0.0
    """When it changed the count last; 0: never."""
    last: str = ""
    """What it did then."""
