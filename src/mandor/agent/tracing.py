"""Spans of the agent in the trace of an instance: from its order, over the start of its tasks, to the report."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from mandor.agent.order import Order
from mandor.engines.base import Unit
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.phase import Phase
from mandor.store.traced import left_by
from mandor.telemetry.span import Kind, Span, Value, step, within
from mandor.telemetry.tracer import Tracer

BEFORE_IT_RUNS = frozenset({Phase.RESERVED, Phase.STARTING})


class InstanceTrace:
    """The span of one instance, until it runs or has failed to."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self.span = tracer, span
        self._report: Span | None = None
        self.over = False

    def described(self, status: InstanceStatus) -> None:
        """Begin the span of the report of a status."""
        if self.over or self._report is not None or status.phase in BEFORE_IT_RUNS:
            return
        about: dict[str, Value] = {"mandor.phase": status.phase.value}
        self._report = self._tracer.below(self.span, "report status", Kind.PRODUCER, attributes=about)

    def reported(self, status: InstanceStatus) -> None:
        """End the trace: the status is stored."""
        if self.over or status.phase in BEFORE_IT_RUNS:
            return
        self.span.attributes |= {"mandor.phase": status.phase.value, "mandor.engine": status.engine}
        if status.phase not in {Phase.RUNNING, Phase.SUCCEEDED}:
            self.span.fail(status.message or status.reason, status.reason)
        self.end()

    def reporting(self) -> AbstractContextManager[object]:
        return within(self._report) if self._report is not None else nullcontext()

    def end(self) -> None:
        if not self.over:
            self.over = True
            if self._report is not None:
                self._tracer.end(self._report)
            self._tracer.end(self.span)


class Tracing:
    """Begins the spans of instances; an instance without a trace context gets none."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def begin(self, instance: Instance) -> InstanceTrace | None:
        """Begin the span of an instance that has been ordered and does not run yet."""
        parent = left_by(instance)
        if parent is None or instance.phase not in BEFORE_IT_RUNS or instance.spec.stop is not None:
            return None
        span = self._tracer.begin("start instance", parent, Kind.CONSUMER, attributes=_about(instance))
        return InstanceTrace(self._tracer, span)

    def begin_restart(self, instance: Instance) -> InstanceTrace | None:
        """Begin a new trace for a restart, with a link to the trace of the instance."""
        earlier = left_by(instance)
        if earlier is None:
            return None
        return InstanceTrace(
            self._tracer, self._tracer.begin("restart instance", attributes=_about(instance), links=(earlier,))
        )


def _about(instance: Instance) -> dict[str, Value]:
    return {
        "mandor.namespace": instance.meta.namespace,
        "mandor.instance": instance.meta.name,
        "mandor.workload": instance.spec.workload,
        "mandor.uid": instance.meta.uid,
        "mandor.node": instance.spec.node,
    }


@contextmanager
def starting(order: Order, unit: Unit, engine: str) -> Iterator[None]:
    """Record the start of a unit, from waiting for a slot to the engine's answer."""
    about: dict[str, Value] = {"mandor.task": unit.task, "mandor.attempt": unit.attempt, "mandor.engine": engine}
    task = order.template.tasks.get(unit.task) if order.template is not None else None
    if task is not None and task.image is not None:
        about["container.image.name"] = task.image
    with step("start task", about):
        yield


def report_context(traces: Iterable[InstanceTrace | None]) -> AbstractContextManager[object]:
    """Return the context for a request that reports several instances: that of the first one in a trace."""
    return next((each.reporting() for each in traces if each is not None and not each.over), nullcontext())
