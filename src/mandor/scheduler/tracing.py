"""Spans of scheduling: one for each attempt to place an instance that is in a trace, one for each point below it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter, time_ns
from typing import TypeVar

from msgspec.structs import replace

from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.cycle import FEW_NODES, Decision
from mandor.placement.framework.points import Plugin
from mandor.placement.framework.request import PlacementRequest
from mandor.scheduler.queue import Entry, gate_of
from mandor.scheduler.view import Promise
from mandor.scheduler.watchdog import Call, Watchdog
from mandor.store.mirror import Mirror
from mandor.store.traced import left_by, make_mark
from mandor.telemetry.context import SpanContext
from mandor.telemetry.span import Kind, Span, Value, within
from mandor.telemetry.tracer import Tracer

T = TypeVar("T")

ATTEMPTS_MOST = 20
"""So many attempts without a node are told of each instance, and then only the one that finds it."""
SECTIONS_MOST = 64
"""So many spans of points one attempt has: whoever makes room asks plugins thousands of times."""
KNOWN_MOST = 10_000
NODES_EACH_SECOND = 100_000
"""So many nodes are asked about step by step in a second, for traces; in a burst the others are decided the quick way,
and only those points are told of where plugins were called."""
PASSED = ("Reserve", "Permit", "PreBind")
"""Points that every placement passes, though mostly nobody has anything to do there."""


def _offset() -> int:
    """From `perf_counter`, in nanoseconds, to the time of day."""
    return time_ns() - int(perf_counter() * 1e9)


@dataclass(slots=True)
class Wait:
    """Of one that has no node yet: since when this attempt waits, and what it went through."""

    uid: str
    since: int
    offset: int = field(default_factory=_offset)
    """One for the whole attempt: two clocks are never read at the same moment, and with another mistake for each of its
    points they would not stand in order."""
    gates: list[Call] = field(default_factory=list)


@dataclass(slots=True)
class Attempt:
    uid: str
    span: Span
    number: int
    offset: int
    passed: set[str] = field(default_factory=set)
    bind: Span | None = None


class Tracing:
    """Every question is answered by whether the instance carries a mark: without one, nothing is done."""

    def __init__(self, tracer: Tracer, instances: Mirror, watchdog: Watchdog, clock: Clock) -> None:
        self._tracer, self._instances, self._watchdog, self._clock = tracer, instances, watchdog, clock
        self._attempts: dict[Key, Attempt] = {}
        self._waits: dict[Key, Wait] = {}
        self._second, self._nodes_left = 0.0, NODES_EACH_SECOND

    # Before a cycle.

    def call(self, plugin: Plugin, work: Callable[..., T], *given: object) -> T:
        """As the watchdog's, which the queue calls plugins by: PreEnqueue is noted."""
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
            wait = self._waits[key] = Wait(instance.meta.uid, int(gate[2] * 1e9) + offset, offset)
            _forget_oldest(self._waits)
        wait.gates = [*wait.gates[-SECTIONS_MOST:], gate]

    # A cycle, and what comes after it.

    @contextmanager
    def following(self, entry: Entry) -> Iterator[None]:
        """The points that it goes through in here are told of."""
        attempt = self._attempt(entry)
        if attempt is None:
            yield
            return
        before, trail = self._watchdog.trail, list[Call]()
        self._watchdog.trail = trail
        try:
            yield
        finally:
            self._watchdog.trail = before
            self._tell(attempt, trail)

    def affords(self, entry: Entry, nodes: int) -> bool:
        """Whether it is decided step by step, on so many nodes; few of them cost nothing."""
        now = self._clock.monotonic()
        if now - self._second >= 1.0:
            self._second, self._nodes_left = now, NODES_EACH_SECOND
        if nodes > FEW_NODES:
            self._nodes_left -= nodes + 1
        affords = nodes <= FEW_NODES or self._nodes_left >= 0
        found = self._attempts.get(entry.request.key)
        if found is not None:
            found.span.attributes["mandor.step_by_step"] = affords
        return affords

    @contextmanager
    def step(self, entry: Entry, point: str, plugin: str) -> Iterator[None]:
        """A point where a plugin may take its time, and write or ask others."""
        attempt = self._attempt(entry)
        if attempt is None:
            yield
            return
        attempt.passed.add(point)
        span = self._tracer.below(attempt.span, point, attributes={"mandor.point": point, "mandor.plugins": (plugin,)})
        with self._tracer.ending(span), within(span):
            yield

    def decided(self, entry: Entry, decision: Decision) -> None:
        attempt = self._attempt(entry)
        if attempt is None:
            return
        found: dict[str, Value] = {"mandor.node": decision.node} if decision.node else {}
        if decision.relaxed:
            found["mandor.relaxed"] = decision.relaxed
        if decision.nominated:
            found |= {"mandor.nominated": decision.nominated, "mandor.victims": len(decision.victims)}
        attempt.span.attributes |= found

    def refused(self, entry: Entry, reason: str, message: str) -> None:
        """It waits again."""
        attempt = self._attempt(entry)
        if attempt is None:
            return
        del self._attempts[entry.request.key]
        if attempt.bind is not None:
            attempt.bind.fail(message, reason)
            self._tracer.end(attempt.bind)
        attempt.span.fail(message, reason)
        if attempt.number > ATTEMPTS_MOST:
            self._tracer.drop(attempt.span)
        else:
            self._tracer.end(attempt.span)
        self._waits[entry.request.key] = Wait(entry.uid, time_ns())
        _forget_oldest(self._waits)

    def binding(self, promise: Promise, bound: Instance) -> Instance:
        """As it is to be written: whoever acts on it goes on from there."""
        attempt = self._attempt(promise.entry)
        if attempt is None:
            return bound
        if attempt.bind is None:
            about: dict[str, Value] = {"mandor.point": "Bind", "mandor.node": promise.node}
            attempt.bind = self._tracer.below(attempt.span, "Bind", Kind.PRODUCER, attributes=about)
        at = bound.meta.trace.at if bound.meta.trace is not None else self._clock.now()
        return bound.changed(meta=replace(bound.meta, trace=make_mark(attempt.bind.context, at)))

    @contextmanager
    def bound(self, promise: Promise) -> Iterator[None]:
        """It is written down; in here those hear of it who have to."""
        attempt = self._attempts.get(promise.key)
        if attempt is None or attempt.uid != promise.entry.uid:
            yield
            return
        self._end_bind(attempt)
        try:
            with self.following(promise.entry):
                yield
        finally:
            self._attempts.pop(promise.key, None)
            self._tracer.end(attempt.span)

    def _end_bind(self, attempt: Attempt) -> None:
        since = attempt.bind.start if attempt.bind is not None else time_ns()
        for point in PASSED:
            if point not in attempt.passed:
                nobody: dict[str, Value] = {"mandor.point": point, "mandor.plugins": ()}
                self._tracer.end(self._tracer.below(attempt.span, point, start=since, attributes=nobody), at=since)
        if attempt.bind is not None:
            self._tracer.end(attempt.bind)

    def _attempt(self, entry: Entry) -> Attempt | None:
        """The one that goes on, or a new one; None: the instance is in no trace."""
        key = entry.request.key
        found = self._attempts.get(key)
        if found is not None and found.uid == entry.uid:
            return found
        instance = self._instances.get(key)
        parent = left_by(instance)
        if instance is None or parent is None or instance.meta.uid != entry.uid:
            return None
        wait = self._waits.pop(key, None)
        if wait is None or wait.uid != entry.uid:
            wait = Wait(entry.uid, min(int(entry.queued_at * 1e9), time_ns()))
        made = self._attempts[key] = self._begun(entry, parent, wait)
        _forget_oldest(self._attempts)
        return made

    def _begun(self, entry: Entry, parent: SpanContext, wait: Wait) -> Attempt:
        key, number = entry.request.key, entry.attempts + 1
        span = self._tracer.begin("schedule", parent, Kind.CONSUMER, start=wait.since)
        span.pending = []
        span.attributes |= {
            "mandor.namespace": key.namespace,
            "mandor.instance": key.name,
            "mandor.workload": entry.request.identity.workload,
            "mandor.decision": f"{entry.uid}.{number}",
            "mandor.attempt": number,
            "mandor.profile": entry.request.profile,
            "mandor.priority": entry.request.priority,
        }
        attempt = Attempt(entry.uid, span, number, wait.offset)
        if wait.gates:
            self._tell(attempt, wait.gates)
        elif number == 1:
            about: dict[str, Value] = {"mandor.point": "PreEnqueue", "mandor.plugins": ()}
            gate = self._tracer.below(span, "PreEnqueue", start=wait.since, attributes=about)
            self._tracer.end(gate, at=wait.since)
        self._tracer.end(self._tracer.below(span, "Queue", start=wait.since))
        return attempt

    def _tell(self, attempt: Attempt, trail: Sequence[Call]) -> None:
        """A span for each row of calls at one point."""
        for section in _sections(trail):
            point, _, began, _ = section[0]
            attempt.passed.add(point)
            about: dict[str, Value] = {
                "mandor.point": point,
                "mandor.plugins": tuple(call[1] for call in section),
                "mandor.plugins.nanoseconds": tuple(int((call[3] - call[2]) * 1e9) for call in section),
            }
            start, end = (int(each * 1e9) + attempt.offset for each in (began, section[-1][3]))
            span = self._tracer.below(attempt.span, point, start=max(start, attempt.span.start), attributes=about)
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
    """Of those that vanished nobody tells."""
    if len(among) > KNOWN_MOST:
        del among[next(iter(among))]
