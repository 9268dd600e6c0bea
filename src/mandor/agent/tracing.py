"""The agent's part of a trace: from the order to the report that it runs, with every task that is started for it."""

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
    """Of one instance, until it runs, or never will."""

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer, self.span = tracer, span
        self._report: Span | None = None
        self.over = False

    def described(self, status: InstanceStatus) -> None:
        """This is about to be reported."""
        if self.over or self._report is not None or status.phase in BEFORE_IT_RUNS:
            return
        about: dict[str, Value] = {"mandor.phase": status.phase.value}
        self._report = self._tracer.below(self.span, "report status", Kind.PRODUCER, attributes=about)

    def reported(self, status: InstanceStatus) -> None:
        """This is stored."""
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
    """Of a node: what carries no mark is in no trace."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def ordered(self, instance: Instance) -> InstanceTrace | None:
        """It has come to this node, and does not run yet."""
        parent = left_by(instance)
        if parent is None or instance.phase not in BEFORE_IT_RUNS or instance.spec.stop is not None:
            return None
        span = self._tracer.begin("start instance", parent, Kind.CONSUMER, attributes=_about(instance))
        return InstanceTrace(self._tracer, span)

    def again(self, instance: Instance) -> InstanceTrace | None:
        """It ran, and something of it is started anew: another trace, which points to the one it came from."""
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
    """One task, from when it waits for its turn to what the engine says of it."""
    about: dict[str, Value] = {"mandor.task": unit.task, "mandor.attempt": unit.attempt, "mandor.engine": engine}
    task = order.template.tasks.get(unit.task) if order.template is not None else None
    if task is not None and task.image is not None:
        about["container.image.name"] = task.image
    with step("start task", about):
        yield


def report_context(stories: Iterable[InstanceTrace | None]) -> AbstractContextManager[object]:
    """Reports go together; the request that brings them is part of one of the traces."""
    return next((each.reporting() for each in stories if each is not None and not each.over), nullcontext())
