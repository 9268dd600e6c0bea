"""What people see of log sinks."""

import pytest

from mandor.cli import log_sinks
from mandor.model.log_sink import LogSink, LogSinkSpec, SinkHealth
from mandor.model.meta import Meta
from mandor.model.node import Node, NodePhase, NodeStatus
from tests.unit.cli.conftest import LiveApi, Mandor


@pytest.mark.req("S2-40")
def test_a_sink_is_described_with_its_health_on_every_node_those_that_fail_first(api: LiveApi, mandor: Mandor) -> None:
    failing = SinkHealth(state="Failing", message="no answer within 10s", shipped=5, dropped=7, waiting=900)
    serving = SinkHealth(state="Serving", shipped=100)
    nodes = {"n1": serving, "n2": failing}
    for name, health in nodes.items():
        status = NodeStatus(phase=NodePhase.READY, log_sinks={"central": health})
        api.put(Node(meta=Meta(name=name), status=status))
    api.put(LogSink(meta=Meta(name="central"), spec=LogSinkSpec(url="fluent://logs:24224")))
    told = mandor("describe", "log-sink", "central").out
    assert "nodes: 2, 1 failing" in told
    assert told.index("n2  Failing") < told.index("n1  Serving (100 lines shipped, 0 waiting)")
    assert "(5 lines shipped, 900 waiting, 7 dropped): no answer within 10s" in told
    assert "log sink central" in mandor("describe", "node", "n2").out
    row = mandor("get", "log-sinks").out.splitlines()[1].split()
    assert row[:4] == ["central", "On", "fluent://logs:24224", "instances,agent"]


def test_a_sink_that_no_node_has_received_of_reports_it() -> None:
    assert log_sinks.describe_health({"meta": {"name": "x"}}, []) == ["", "nodes: no reports yet"]
