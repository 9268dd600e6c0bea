"""The agent's spans end when the status is stored; a restart is another trace."""

from __future__ import annotations

import msgspec
import pytest

from mandor.agent.tracing import Tracing, starting
from mandor.engines.base import Unit
from mandor.errors import Unavailable
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import TraceMark
from mandor.model.phase import Phase
from mandor.telemetry.context import SpanContext
from mandor.telemetry.span import current, within
from mandor.telemetry.tracer import Tracer
from tests.unit.agent.make import make_order

PARENT = SpanContext("a" * 32, "b" * 16)
RUNNING = InstanceStatus(phase=Phase.RUNNING, engine="fake")


def instance(phase: Phase, *, marked: bool = True) -> Instance:
    made = make_order().instance
    mark = TraceMark(PARENT.header, 1.0) if marked else None
    return made.changed(meta=msgspec.structs.replace(made.meta, trace=mark), status=InstanceStatus(phase=phase))


def test_instances_without_trace_context_or_already_running_get_no_trace() -> None:
    tracing = Tracing(Tracer())
    assert tracing.begin(instance(Phase.RESERVED, marked=False)) is None
    assert tracing.begin(instance(Phase.RUNNING)) is None
    assert tracing.begin(instance(Phase.RESERVED).stopping("no more")) is None
    assert tracing.begin_restart(instance(Phase.RUNNING, marked=False)) is None


def test_a_trace_spans_from_the_order_to_the_report_of_running() -> None:
    tracer = Tracer()
    trace = Tracing(tracer).begin(instance(Phase.RESERVED))
    assert trace is not None
    with within(trace.span), starting(make_order(), Unit("u", "main", 1), "fake"):
        pass
    trace.described(InstanceStatus(phase=Phase.STARTING))
    trace.described(RUNNING)
    trace.reported(InstanceStatus(phase=Phase.STARTING))
    with trace.reporting():
        assert current() is not None
    trace.reported(RUNNING)
    trace.reported(InstanceStatus(phase=Phase.FAILED, reason="Error"))
    task, report, whole = tracer.take()
    assert [each.name for each in (task, report, whole)] == ["start task", "report status", "start instance"]
    assert {task.parent_id, report.parent_id} == {whole.context.span_id}
    assert (whole.context.trace_id, whole.parent_id, whole.failure) == (PARENT.trace_id, PARENT.span_id, None)
    assert (task.attributes["mandor.task"], task.attributes["mandor.attempt"]) == ("main", 1)


def test_spans_of_failed_starts_and_instances_have_the_reason() -> None:
    tracer = Tracer()
    trace = Tracing(tracer).begin(instance(Phase.RESERVED))
    assert trace is not None
    for attempt in (1, 2):
        with pytest.raises(Unavailable), within(trace.span), starting(make_order(), Unit("u", "main", attempt), "fake"):
            raise Unavailable("the registry does not answer")
    failed = InstanceStatus(phase=Phase.FAILED, reason="CrashLoop", message="it failed twice")
    trace.described(failed)
    trace.reported(failed)
    first, second, _, whole = tracer.take()
    assert (first.failure, first.attributes["error.type"]) == ("the registry does not answer", "unavailable")
    assert second.attributes["mandor.attempt"] == 2
    assert (whole.failure, whole.attributes["error.type"]) == ("it failed twice", "CrashLoop")


def test_a_restart_is_a_new_trace_with_a_link_to_the_first() -> None:
    tracer = Tracer()
    trace = Tracing(tracer).begin_restart(instance(Phase.RUNNING))
    assert trace is not None
    trace.reported(RUNNING)
    (whole,) = tracer.take()
    assert (whole.name, whole.parent_id, whole.links) == ("restart instance", "", (PARENT,))
    assert whole.context.trace_id != PARENT.trace_id
