"""Autoscale: how the instance count of a group follows its load."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Percent, Seconds
from mandor.model.meta import InvalidField

PERCENT_MOST = 1000
WINDOW_SECONDS_MOST = 3600
QUERY_MOST = 4096


def _check_percent(name: str, value: Percent | None) -> None:
    if value is not None and not 1 <= value <= PERCENT_MOST:
        raise InvalidField(f"{value} is out of range", name, hint=f"1% to {PERCENT_MOST}%")


class Metric(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A number returned by a query to a Prometheus server."""

    query: Annotated[str, Bounds(max_length=QUERY_MOST)]
    """PromQL query that returns one number: `sum(rate(http_requests_total{job="shop"}[1m]))`."""
    target: float
    """Value that one instance can handle. The group needs the query's result divided by this number of instances."""
    url: str = ""
    """URL of the Prometheus server, for example `http://prometheus:9090`. Defaults to the server's `prometheus`
    setting.
    """
    average: bool = False
    """Whether the result is already an average per instance, such as a latency. Defaults to false: the result is a
    total that all instances share.
    """

    def __post_init__(self) -> None:
        if not self.query.strip():
            raise InvalidField(
                "the query is empty", "query", hint='PromQL: `sum(rate(http_requests_total{job="shop"}[1m]))`'
            )
        if not 0 < self.target < 1e15:
            raise InvalidField(
                f"the target {self.target:g} is out of range",
                "target",
                hint="a number above 0: the value that one instance can handle",
            )
        if self.url and not self.url.startswith(("http://", "https://")):
            raise InvalidField(
                f"{self.url[:60]!r} is not the URL of a Prometheus server", "url", hint="http://HOST:9090"
            )
        if "@" in self.url:
            raise InvalidField(
                "a URL in a manifest must not contain credentials", "url", hint="remove the part before `@`"
            )


class ScalePace(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Limits how fast the instance count changes in one direction. If both `instances` and `percent` are set, the
    larger step applies.
    """

    window: Seconds | None = None
    """Stabilization window: the count follows the most conservative result of this period. Defaults to 0s for `up` and
    5m for `down`; at most 1h.
    """
    instances: Annotated[int, Bounds(ge=1, le=100_000)] | None = None
    """Maximum number of instances added or removed within `per`."""
    percent: Percent | None = None
    """Maximum change within `per`, in percent of the count before. If neither `instances` nor `percent` is set, `up`
    allows 4 instances or 100% in 15s, and `down` is unlimited.
    """
    per: Seconds = Seconds(60)
    """Period that `instances` and `percent` apply to, 1s to 1h. Defaults to 60s."""

    def __post_init__(self) -> None:
        if self.window is not None and self.window > WINDOW_SECONDS_MOST:
            raise InvalidField(f"the window {self.window} is too long", "window", hint="at most 1h")
        if not 1 <= self.per <= WINDOW_SECONDS_MOST:
            raise InvalidField(f"{self.per} is out of range", "per", hint="1s to 1h")
        _check_percent("percent", self.percent)

    def over(self, usual: "ScalePace") -> "ScalePace":
        """Return this pace with unset fields taken from `usual`."""
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
    """Scales the instance count between `min` and `max`. The measure that requires the most instances decides."""

    max: Annotated[int, Bounds(ge=1, le=100_000)]
    """Maximum number of instances, 1 to 100000."""
    min: Annotated[int, Bounds(ge=0, le=100_000)] = 1
    """Minimum number of instances. Defaults to 1. 0 is allowed only if a `metric` that is a total is the only measure,
    because usage cannot be measured without instances.
    """
    cpu: Percent | None = None
    """Target average CPU usage in percent of the requested CPU, for example `70%`."""
    memory: Percent | None = None
    """Target average memory usage in percent of the requested memory, for example `80%`."""
    metric: Metric | None = None
    """Target for the result of a Prometheus query."""
    tolerance: Percent = Percent(10)
    """Deviation from the target that is ignored. Defaults to 10%."""
    up: ScalePace = ScalePace()
    """Limits for growing. Defaults to no delay, and at most 4 instances or 100% in 15s, whichever is more."""
    down: ScalePace = ScalePace()
    """Limits for shrinking. Defaults to the highest count required within the last 5m."""

    def __post_init__(self) -> None:
        if self.min > self.max:
            raise InvalidField(
                f"`min` is {self.min}, more than `max`, which is {self.max}", "min", hint=f"at most {self.max}"
            )
        if self.cpu is None and self.memory is None and self.metric is None:
            raise InvalidField(
                "autoscale has no target", hint="set at least one of `cpu: 70%`, `memory: 80%`, `metric: {…}`"
            )
        for name in ("cpu", "memory"):
            _check_percent(name, getattr(self, name))
        if self.tolerance > 100:
            raise InvalidField(f"the tolerance {self.tolerance} is too large", "tolerance", hint="0% to 100%")
        total = self.metric is not None and not self.metric.average and self.cpu is None and self.memory is None
        if self.min == 0 and not total:
            raise InvalidField(
                "with `min: 0` there may be no instance whose usage can be measured",
                "min",
                hint="set `min` to at least 1, or scale by a `metric` that is a total, without `cpu` and `memory`",
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
    """One measure, as it was when the autoscaler last computed the count."""

    name: Literal["cpu", "memory", "metric"]
    current: float | None = None
    """Usage in percent of the request, or the metric's value per instance; absent if unknown."""
    target: float
    problem: str = ""
    """Reason why `current` is unknown."""


class AutoscaleStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Autoscaler status of one group."""

    reason: AutoscaleReason
    message: str = ""
    """The autoscaler's last action or the limit that prevents one."""
    readings: tuple[Reading, ...] = ()
    last_at: float = 0.0
    """Unix time of the last change of the count; 0 if it has never changed."""
    last: str = ""
    """The last change of the count."""
