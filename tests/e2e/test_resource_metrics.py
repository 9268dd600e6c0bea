"""A real Prometheus reads CPU, memory and network of real containers and of their node, and the figures are true."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.components.docker import Docker
from tests.components.image import NAME
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.test_metrics import Prometheus

MEBIBYTE = 1 << 20
HELD = 40 * MEBIBYTE
WORK = f"""
name: burner
image: {NAME}
command: [sh, -c, 'while :; do :; done']
resources: {{cpu: 100m}}
stop: {{grace: 0s}}
---
name: holder
image: {NAME}
command: [sh, -c, 'x=$(head -c {HELD} /dev/zero | tr "\\0" x); while :; do sleep 0.2; done']
stop: {{grace: 0s}}
---
name: server
image: {NAME}
command: [sh, -c, 'mkdir /tmp/w; head -c {MEBIBYTE} /dev/zero > /tmp/w/page; exec httpd -f -p 8080 -h /tmp/w']
stop: {{grace: 0s}}
"""
CLIENT = f"""
name: client
image: {NAME}
command: [sh, -c, 'while :; do wget -qO /dev/null http://{{address}}:8080/page; sleep 0.1; done']
stop: {{{{grace: 0s}}}}
"""


@pytest.mark.real("prometheus", "docker")
@pytest.mark.slow
@pytest.mark.req("S2-41")
def test_cpu_memory_and_network_of_containers_and_nodes_are_true(
    new_docker: Callable[..., Docker], tmp_path: Path
) -> None:
    docker, port = new_docker(), free_port()
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        environ = {"DOCKER_HOST": f"unix://{docker.socket}", "MANDOR_METRICS": f"127.0.0.1:{port}"}
        cluster.start_agent("n1", engines=("docker",), environ=environ)
        cluster.wait_nodes("n1")
        targets = {"mandor-server": cluster.urls[0].removeprefix("http://"), "mandor-agent": f"127.0.0.1:{port}"}
        prometheus = Prometheus(tmp_path / "prometheus", targets)
        prometheus.program.start()
        try:
            _compare(cluster, prometheus)
        finally:
            prometheus.program.end()


def _compare(cluster: Cluster, prometheus: Prometheus) -> None:
    def value(expression: str) -> float:
        return sum(float(each["value"][1]) for each in prometheus.query(expression))

    def of(metric: str, workload: str) -> float:
        return value(f'mandor_instance_{metric}{{workload="{workload}"}}')

    cluster.apply(WORK)
    (server,) = cluster.wait_running("server", 1)
    cluster.apply(CLIENT.format(address=server["status"]["address"]))
    for name in ("burner", "holder", "client"):
        cluster.wait_running(name, 1)

    eventually("the burner used CPU time", lambda: of("cpu_seconds_total", "burner") > 2)
    assert of("cpu_seconds_total", "holder") < of("cpu_seconds_total", "burner")
    eventually("the holder holds its memory", lambda: HELD < of("memory_bytes", "holder") < 4 * HELD)
    assert 0 < of("memory_bytes", "burner") < HELD
    eventually("the server sent pages", lambda: of("network_sent_bytes_total", "server") > 5 * MEBIBYTE)
    eventually("the client received them", lambda: of("network_received_bytes_total", "client") > 5 * MEBIBYTE)
    assert of("network_sent_bytes_total", "client") < of("network_received_bytes_total", "client")
    assert of("network_received_bytes_total", "burner") < MEBIBYTE

    eventually("the node uses CPU", lambda: value('mandor_node_used_cpu_cores{node="n1"}') > 0.2)
    assert value('mandor_node_used_cpu_cores{node="n1"}') <= 1.2 * (psutil.cpu_count() or 1)
    assert 0 < value('mandor_node_used_memory_bytes{node="n1"}') < psutil.virtual_memory().total
    for direction in ("received", "sent"):
        assert prometheus.query(f'mandor_node_network_{direction}_bytes_per_second{{node="n1"}}')
