"""One trace from `mandor apply` to the instance that runs, as a strict receiver of OTLP sees it."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components.trace_receiver import Seen, TraceReceiver, check_whole, receiving
from tests.e2e.cluster import Cluster, eventually

WORK = """
name: web
engine: process
command: [sh, -c, "env | grep -E '^(OTEL|TRACE)'; exec sleep 1000"]
volumes: {data: {type: local, size: 1Mi}}
mounts: [{volume: data, path: data}]
resources: {cpu: 10m, memory: 16Mi}
"""
ONE = """
name: NAME
engine: process
command: [sleep, "1000"]
resources: {cpu: CPU, memory: 16Mi}
"""
POINTS = ["PreEnqueue", "PreFilter", "Filter", "PreScore", "Score", "Reserve", "Permit", "PreBind", "Bind"]
CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def receiver() -> Iterator[TraceReceiver]:
    with receiving() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(receiver: TraceReceiver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("traced"), settings={"MANDOR_LOG_STYLE": "json"}) as running:
        running.start_server(MANDOR_OTLP_TRACES=receiver.url)
        for name in ("n1", "n2"):
            options = ("--otlp", receiver.url, "--otlp-traces", receiver.url)
            running.start_agent(name, options=options)
        running.wait_nodes("n1", "n2")
        yield running


def _named(spans: list[Seen], name: str) -> list[Seen]:
    return sorted((each for each in spans if each.name == name), key=lambda each: each.start)


@pytest.mark.req("S2-43")
def test_one_trace_leads_from_the_command_to_what_runs(
    cluster: Cluster, receiver: TraceReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(WORK)
    monkeypatch.setenv("MANDOR_OTLP_TRACES", receiver.url)
    done = cluster.mandor("apply", "-f", str(file))
    assert done.returncode == 0, done.stderr
    told = re.search(r"^trace ([0-9a-f]{32})$", done.stderr, re.MULTILINE)
    assert told is not None, done.stderr
    cluster.wait_running("web", 1)
    receiver.wait_for(lambda spans: bool(_named(spans, "start instance")))
    # Agents send on their own time, and so does the server: all is there when no parent is missing.
    trace = eventually("the trace is whole", lambda: _whole(receiver, told[1]))
    (command,) = _named(trace, "mandor apply")
    request, apply = _named(trace, "POST /v1/apply")
    assert (command.service, request.service, apply.service) == ("mandor-cli", "mandor-cli", "mandor-server")
    assert (request.kind, apply.kind) == (3, 2)
    assert apply.attributes["http.response.status_code"] == 200
    assert apply.attributes["http.route"] == "/v1/apply"
    assert any(each.parent_id == apply.span_id for each in _named(trace, "store.commit"))
    (schedule,) = _named(trace, "schedule")
    below = [each for each in trace if each.parent_id == schedule.span_id]
    assert [each.name for each in sorted(below, key=lambda each: each.start) if each.name in POINTS] == POINTS
    outside = [each for each in below if not schedule.start <= each.start <= each.end <= schedule.end]
    assert outside == [], schedule
    assert schedule.status == 0
    (bind,) = _named(trace, "Bind")
    (begun,) = _named(trace, "start instance")
    assert begun.parent_id == bind.span_id
    assert begun.service == "mandor-agent"
    assert begun.attributes["mandor.instance"] == schedule.attributes["mandor.instance"] == "web-0"
    assert begun.resource["service.instance.id"] == begun.attributes["mandor.node"] == bind.attributes["mandor.node"]
    assert begun.attributes["mandor.phase"] == "Running"
    assert {"start task", "report status"} <= {each.name for each in trace if each.parent_id == begun.span_id}
    assert {"NodeResourcesFit"} <= set(_named(trace, "Filter")[0].attributes["mandor.plugins"])
    assert "VolumeBinding" in _named(trace, "PreBind")[0].attributes["mandor.plugins"]

    logs = eventually("it writes", lambda: cluster.mandor("logs", "web-0").stdout)
    assert f"OTEL_EXPORTER_OTLP_ENDPOINT={receiver.url}" in logs
    assert "OTEL_SERVICE_NAME=web" in logs
    parent = re.search(r"^TRACEPARENT=00-([0-9a-f]{32})-([0-9a-f]{16})-01$", logs, re.MULTILINE)
    assert parent is not None
    assert parent.groups() == (told[1], bind.span_id)
    assert not receiver.faults


def _whole(receiver: TraceReceiver, trace_id: str, root_parent: str = "") -> list[Seen]:
    trace = receiver.trace(trace_id)
    try:
        check_whole(trace, root_parent)
    except AssertionError:
        return []
    return trace


@pytest.mark.req("S2-43")
def test_a_trace_of_the_caller_goes_on_and_reports_of_refusals(cluster: Cluster, receiver: TraceReceiver) -> None:
    manifest = ONE.replace("NAME", "huge").replace("CPU", "9000")
    _, trace_id, parent_id, _ = CALLER.split("-")
    status, _ = _apply(cluster, manifest, CALLER)
    assert status == 200
    receiver.wait_for(lambda _: any(each.name == "schedule" for each in receiver.trace(trace_id)))
    trace = eventually("the trace is whole", lambda: _whole(receiver, trace_id, parent_id))
    schedule = _named(trace, "schedule")[0]
    assert schedule.status == 2
    assert "NodeResourcesFit" in schedule.message
    assert schedule.attributes["error.type"] == "Unschedulable"
    assert not _named(trace, "Bind")

    refused = CALLER.replace("0af765", "0af766")
    status, _ = _apply(cluster, "name: [no", refused)
    assert status == 400
    receiver.wait_for(lambda _: bool(receiver.trace(refused.split("-")[1])))
    (answer,) = receiver.trace(refused.split("-")[1])
    assert answer.attributes["http.response.status_code"] == 400
    assert answer.attributes["error.type"] == "invalid"
    unsampled = CALLER.replace("0af765", "0af767")[:-1] + "0"
    assert _apply(cluster, ONE.replace("NAME", "quiet").replace("CPU", "10m"), unsampled)[0] == 200
    (quiet,) = cluster.wait_running("quiet", 1)
    assert "trace" not in quiet["meta"]


def _apply(cluster: Cluster, manifest: str, traceparent: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(cluster.urls[0].removeprefix("http://"), timeout=30)
    try:
        headers = {"Content-Type": "application/yaml", "traceparent": traceparent}
        connection.request("POST", "/v1/apply", manifest, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.req("S2-43")
def test_an_unreachable_trace_receiver_affects_nothing(cluster: Cluster, receiver: TraceReceiver) -> None:
    receiver.stop()
    try:
        cluster.apply(ONE.replace("NAME", "alone").replace("CPU", "10m"))
        cluster.wait_running("alone", 1)
        told = eventually("it says so", lambda: "traces do not reach" in cluster.servers[0].text())
        assert told
        status, counted = cluster.call("GET", "/metrics")
        assert status == 200
        assert b'mandor_traces_spans_total{result="dropped"} ' in counted
    finally:
        receiver.start()
    # What waited comes now; it was kept, as far as there is room.
    receiver.wait_for(lambda spans: any(each.attributes.get("mandor.instance") == "alone-0" for each in spans))
    assert not receiver.faults
