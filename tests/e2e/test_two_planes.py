"""Server and agents on machines of their own, with every packet of the server captured."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import report_missing
from tests.e2e.cluster import eventually
from tests.e2e.machines import Machines
from tests.faults.network import why_not

pytestmark = [pytest.mark.real("etcd", "iproute2"), pytest.mark.slow]

WORK = """
kind: namespace
name: default
level: privileged
---
name: {name}
replicas: 2
engine: process
command: [sh, -c, "echo ran > {folder}/$MANDOR_INSTANCE; echo started; exec sleep 1000"]
resources: {{cpu: 10m, memory: 16Mi}}
placement: {{spread: [{{over: node, strength: must}}]}}
stop: {{grace: 1s}}
"""


@pytest.fixture
def machines(tmp_path: Path, etcd_binary: Path) -> Iterator[Machines]:
    if why := why_not():
        report_missing(why)
    with Machines(tmp_path, etcd_binary) as running:
        yield running


@pytest.mark.req("S0-23", "S0-12", "S0-4")
def test_the_server_opens_no_connection_to_a_node_and_starts_no_process(machines: Machines, tmp_path: Path) -> None:
    machines.apply(WORK.format(name="web", folder=tmp_path))
    eventually("both run", lambda: len(machines.instances("web", "Running")) == 2)
    assert {each["spec"]["node"] for each in machines.instances("web")} == {"n1", "n2"}
    assert "started" in machines.mandor("logs", "web-0")
    assert machines.mandor("exec", "web-1", "--", "echo", "from inside").strip() == "from inside"

    # An agent that is silent is found out without a question to its node.
    machines.agents["n2"].kill()
    eventually("the silence is noticed", lambda: _phase(machines, "n2") != "Ready", patience=120)
    machines.agents["n2"].start()
    eventually("the node is ready again", lambda: _phase(machines, "n2") == "Ready", patience=120)
    machines.call("DELETE", "/v1/workloads/web")
    eventually("nothing is left", lambda: not machines.instances("web"))

    # The connections to the store show that the capture sees what the server opens.
    assert machines.capture.opened == {(machines.address("store"), 2379)}
    assert not machines.server_started_processes()


@pytest.mark.req("S0-11", "S0-12")
def test_an_order_is_carried_out_by_the_agent_and_by_nothing_else(machines: Machines, tmp_path: Path) -> None:
    frozen = [agent.process for agent in machines.agents.values()]
    for each in frozen:
        assert each is not None
        each.send_signal(signal.SIGSTOP)
    try:
        machines.apply(WORK.format(name="late", folder=tmp_path))
        eventually("both are assigned", lambda: len(machines.instances("late", "Reserved")) == 2)
        assert not list(tmp_path.glob("late-*"))
    finally:
        for each in frozen:
            assert each is not None
            each.send_signal(signal.SIGCONT)
    eventually("both run", lambda: len(machines.instances("late", "Running")) == 2, patience=120)
    assert {path.name for path in tmp_path.glob("late-*")} == {"late-0", "late-1"}
    assert not machines.server_started_processes()


@pytest.mark.req("S2-26", "S2-41")
def test_the_network_use_of_a_node_is_the_traffic_of_its_machine(machines: Machines) -> None:
    much = 1_000_000  # bytes per second; heartbeats alone are far below
    with machines.traffic("people", "n1"):
        eventually("n1 receives", lambda: _usage(machines, "n1").get("network_in_bytes", 0) > much)
        assert _usage(machines, "n2").get("network_in_bytes", 0) < much
        eventually("metrics show what n1 receives", lambda: _metric(machines, "received", "n1") > much)
        assert _metric(machines, "received", "n2") < much
    with machines.traffic("n2", "people"):
        eventually("n2 sends", lambda: _usage(machines, "n2").get("network_out_bytes", 0) > much)
        eventually("metrics show what n2 sends", lambda: _metric(machines, "sent", "n2") > much)
        eventually("n1 receives no more", lambda: _usage(machines, "n1").get("network_in_bytes", 0) < much)


def _phase(machines: Machines, name: str) -> str:
    return str(machines.call("GET", f"/v1/nodes/{name}")[1]["status"]["phase"])


def _usage(machines: Machines, name: str) -> Any:
    return machines.call("GET", f"/v1/nodes/{name}/usage")[1]["usage"]


def _metric(machines: Machines, direction: str, node: str) -> float:
    text = machines.call("GET", "/metrics")[1]
    found = re.search(rf'^mandor_node_network_{direction}_bytes_per_second{{node="{node}"}} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 0.0
