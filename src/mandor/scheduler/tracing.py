"""Spans of scheduling: one for each try to place an instance that is part of a trace, and one for each point below."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter, time_ns
from typing import TypeVar

from msgspec.structs import replace

from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.decision import Decision
from mandor.placement.fast import FEW_NODES
from mandor.placement.framework.points import Plugin
from mandor.placement.framework.request import PlacementRequest
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.queue import gate_of
from mandor.scheduler.watchdog import Call, Watchdog
from mandor.store.mirror import Mirror
from mandor.store.traced import left_by, make_mark
from mandor.telemetry.context import SpanContext
from mandor.telemetry.span import Kind, Span, Value, within
from mandor.telemetry.tracer import Tracer

T = TypeVar("T")

ATTEMPTS_MOST = 20
"""Tries without a node that are exported per instance; later ones are dropped, except the one that finds a node."""
SECTIONS_MOST = 64
"""Spans of points per try: a preemption calls plugins thousands of times."""
KNOWN_MOST = 10_000
"""Instances whose tries are followed at a time."""
NODES_EACH_SECOND = 100_000
"""Nodes per second on which traced decisions call every plugin; above that, decisions use cached scores, and their
traces show only the plugins that were called."""
PASSED = ("Reserve", "Permit", "PreBind")
"""Points that get a span in every trace, though mostly no plugin takes part."""


def _offset() -> int:
    """Return the difference between the wall clock and `perf_counter`, in nanoseconds."""
    return time_ns() - int(perf_counter() * 1e9)


@dataclass(slots=True)
class TraceWait:
    """The time that an instance spends in the queue before a try."""

    uid: str
    since: int
    offset: int = field(default_factory=_offset)
    """One offset for the whole try: an offset per point would put the points out of order, as two clocks are never read
    at the same moment."""
    gates: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class AttemptTrace:
    """The spans of one try."""

    uid: str
    span: Span
    number: int
    offset: int
    passed: set[str] = field(default_factory=set)
    bind: Span | None = None


class Tracing:
    """Makes the spans of instances that carry a trace context; does nothing for others."""

    def __init__(self, tracer: Tracer, instances: Mirror, watchdog: Watchdog, clock: Clock) -> None:
        self._tracer, self._instances, self._watchdog, self._clock = tracer, instances, watchdog, clock
        self._traces: dict[Key, AttemptTrace] = {}
        self._waits: dict[Key, TraceWait] = {}
        self._second, self._nodes_left = 0.0, NODES_EACH_SECOND

    # Before a scheduling cycle.

    def call(self, plugin: Plugin, work: Callable[..., T], *given: object) -> T:
        """Call a plugin for the queue through the watchdog, and note the time of PreEnqueue calls."""
        if work is not gate_of or not isinstance(given[-1], PlacementRequest):
            return self._watchdog.call(plugin, work, *given)
        began = perf_counter()
        try:
            return self._watchdog.call(plugin, work, *given)
        finally:
            self._gated(given[-1].key, ("PreEnqueue", plugin.name, began, perf_counter()))

    def _gated(self, key: Key, gate: Call) -> None:
        instance = self._instances.get(key)
        if left_by(instance) is None or instance is None:
            return
        wait = self._waits.get(key)
        if wait is None or wait.uid != instance.meta.uid:
            offset = _offset()
            wait = self._waits[key] = TraceWait(instance.meta.uid, int(gate[2] * 1e9) + offset, offset)
            _forget_oldest(self._waits)
        wait.gates = [*wait.gates[-SECTIONS_MOST:], gate]

    # In and after a scheduling cycle.

    @contextmanager
    def following(self, attempt: Attempt) -> Iterator[None]:
        """Add the plugin calls made in this context to the trace of the attempt."""
        trace = self._trace(attempt)
        if trace is None:
            yield
            return
        before, trail = self._watchdog.trail, list[Call]()
        self._watchdog.trail = trail
        try:
            yield
        finally:
            self._watchdog.trail = before
            self._add_calls(trace, trail)

    def affords(self, attempt: Attempt, nodes: int) -> bool:
        """Return whether a decision on this number of nodes may call every plugin (`NODES_EACH_SECOND`)."""
        now = self._clock.monotonic()
        if now - self._second >= 1.0:
            self._second, self._nodes_left = now, NODES_EACH_SECOND
        if nodes > FEW_NODES:
            self._nodes_left -= nodes + 1
        affords = nodes <= FEW_NODES or self._nodes_left >= 0
        found = self._traces.get(attempt.request.key)
        if found is not None:
            found.span.attributes["mandor.step_by_step"] = affords
        return affords

    @contextmanager
    def step(self, attempt: Attempt, point: str, plugin: str) -> Iterator[None]:
        """Make a span for an asynchronous call of a plugin."""
        trace = self._trace(attempt)
        if trace is None:
            yield
            return
        trace.passed.add(point)
        span = self._tracer.below(trace.span, point, attributes={"mandor.point": point, "mandor.plugins": (plugin,)})
        with self._tracer.ending(span), within(span):
            yield

    def decided(self, attempt: Attempt, decision: Decision) -> None:
        trace = self._trace(attempt)
        if trace is None:
            return
        found: dict[str, Value] = {"mandor.node": decision.node} if decision.node else {}
        if decision.relaxed:
            found["mandor.relaxed"] = decision.relaxed
        if decision.nominated:
            found |= {"mandor.nominated": decision.nominated, "mandor.victims": len(decision.victims)}
        trace.span.attributes |= found

    def refused(self, attempt: Attempt, reason: str, message: str) -> None:
        """End the try without a node."""
        trace = self._trace(attempt)
        if trace is None:
            return
        del self._traces[attempt.request.key]
        if trace.bind is not None:
            trace.bind.fail(message, reason)
            self._tracer.end(trace.bind)
        trace.span.fail(message, reason)
        if trace.number > ATTEMPTS_MOST:
            self._tracer.drop(trace.span)
        else:
            self._tracer.end(trace.span)
        self._waits[attempt.request.key] = TraceWait(attempt.uid, time_ns())
        _forget_oldest(self._waits)

    def binding(self, attempt: Attempt, bound: Instance) -> Instance:
        """Add the trace context of the bind to the instance, so that the agent continues the trace."""
        trace = self._trace(attempt)
        if trace is None:
            return bound
        if trace.bind is None:
            about: dict[str, Value] = {"mandor.point": "Bind", "mandor.node": attempt.node}
            trace.bind = self._tracer.below(trace.span, "Bind", Kind.PRODUCER, attributes=about)
        at = bound.meta.trace.at if bound.meta.trace is not None else self._clock.now()
        return bound.changed(meta=replace(bound.meta, trace=make_mark(trace.bind.context, at)))

    @contextmanager
    def bound(self, attempt: Attempt) -> Iterator[None]:
        """End the try with a bind; PostBind plugins are called in this context."""
        trace = self._traces.get(attempt.key)
        if trace is None or trace.uid != attempt.uid:
            yield
            return
        self._end_bind(trace)
        try:
            with self.following(attempt):
                yield
        finally:
            self._traces.pop(attempt.key, None)
            self._tracer.end(trace.span)

    def _end_bind(self, trace: AttemptTrace) -> None:
        since = trace.bind.start if trace.bind is not None else time_ns()
        for point in PASSED:
            if point not in trace.passed:
                about: dict[str, Value] = {"mandor.point": point, "mandor.plugins": ()}
                self._tracer.end(self._tracer.below(trace.span, point, start=since, attributes=about), at=since)
        if trace.bind is not None:
            self._tracer.end(trace.bind)

    def _trace(self, attempt: Attempt) -> AttemptTrace | None:
        """Return the trace of the current try, made if necessary; None: the instance is in no trace."""
        key = attempt.request.key
        found = self._traces.get(key)
        if found is not None and found.uid == attempt.uid:
            return found
        instance = self._instances.get(key)
        parent = left_by(instance)
        if instance is None or parent is None or instance.meta.uid != attempt.uid:
            return None
        wait = self._waits.pop(key, None)
        if wait is None or wait.uid != attempt.uid:
            wait = TraceWait(attempt.uid, min(int(attempt.queued_at * 1e9), time_ns()))
        made = self._traces[key] = self._begin_trace(attempt, parent, wait)
        _forget_oldest(self._traces)
        return made

    def _begin_trace(self, attempt: Attempt, parent: SpanContext, wait: TraceWait) -> AttemptTrace:
        key, number = attempt.request.key, attempt.number
        span = self._tracer.begin("schedule", parent, Kind.CONSUMER, start=wait.since)
        span.pending = []
        span.attributes |= {
            "mandor.namespace": key.namespace,
            "mandor.instance": key.name,
            "mandor.workload": attempt.request.identity.workload,
            "mandor.decision": f"{attempt.uid}.{number}",
            "mandor.trace": number,
            "mandor.profile": attempt.request.profile,
            "mandor.priority": attempt.request.priority,
        }
        trace = AttemptTrace(attempt.uid, span, number, wait.offset)
        if wait.gates:
            self._add_calls(trace, wait.gates)
        elif number == 1:
            about: dict[str, Value] = {"mandor.point": "PreEnqueue", "mandor.plugins": ()}
            gate = self._tracer.below(span, "PreEnqueue", start=wait.since, attributes=about)
            self._tracer.end(gate, at=wait.since)
        self._tracer.end(self._tracer.below(span, "Queue", start=wait.since))
        return trace

    def _add_calls(self, trace: AttemptTrace, trail: Sequence[Call]) -> None:
        """Make a span for each run of consecutive calls at one point."""
        for section in _sections(trail):
            point, _, began, _ = section[0]
            trace.passed.add(point)
            about: dict[str, Value] = {
                "mandor.point": point,
                "mandor.plugins": tuple(call[1] for call in section),
                "mandor.plugins.nanoseconds": tuple(int((call[3] - call[2]) * 1e9) for call in section),
            }
            start, end = (int(each * 1e9) + trace.offset for each in (began, section[-1][3]))
            span = self._tracer.below(trace.span, point, start=max(start, trace.span.start), attributes=about)
            self._tracer.end(span, at=end)


def _sections(trail: Sequence[Call]) -> list[list[Call]]:
    found: list[list[Call]] = []
    for call in trail:
        if found and found[-1][0][0] == call[0]:
            found[-1].append(call)
        elif len(found) < SECTIONS_MOST:
            found.append([call])
    return found


def _forget_oldest(among: dict[Key, T]) -> None:
    """Drop the oldest record above the limit: an instance that is deleted leaves one behind."""
    if len(among) > KNOWN_MOST:
        del among[next(iter(among))]


Step = Callable[[str, str], AbstractContextManager[None]]
"""Opens a span for a point and a plugin."""


def step_of(tracing: Tracing | None, attempt: Attempt) -> Step:
    """Return the function that opens the spans of an attempt; without tracing it opens none."""
    return partial(tracing.step, attempt) if tracing is not None else _untraced


def _untraced(point: str, plugin: str) -> AbstractContextManager[None]:
    return nullcontext()
