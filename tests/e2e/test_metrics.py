"""A real Prometheus reads servers and agents; every query of the dashboard and every alert finds its data."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from scripts.components import find
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, Program, eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
WORK = """
name: web
count: 3
engine: process
command: [sh, -c, "while :; do sleep 0.2; done"]
resources: {cpu: 50m, memory: 16Mi}
"""
TOO_LARGE = """
name: huge
engine: process
command: [sleep, "1000"]
resources: {cpu: 9000, memory: 16Mi}
"""


class Prometheus:
    """Reads the targets every second, with the rules of `deploy/prometheus`."""

    def __init__(self, directory: Path, targets: dict[str, str]) -> None:
        directory.mkdir()
        self._port = free_port()
        config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        config["global"]["scrape_interval"] = config["global"]["evaluation_interval"] = "1s"
        for job in config["scrape_configs"]:
            job.pop("authorization", None)  # nobody is asked for a token on this machine
            job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        (directory / "alerts.yml").write_text((DEPLOY / "prometheus" / "alerts.yml").read_text())
        command = [str(find("prometheus")), f"--config.file={directory / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address=127.0.0.1:{self._port}"]
        self.program = Program("prometheus", command, directory / "log")

    def query(self, expression: str) -> list[Any]:
        url = f"http://127.0.0.1:{self._port}/api/v1/query?{urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: list[Any] = json.load(answer)["data"]["result"]
            return found


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[tuple[Cluster, Prometheus, int]]:
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server()
        port = free_port()
        cluster.start_agent("n1", environ={"MANDOR_METRICS": f"127.0.0.1:{port}"})
        targets = {
            "mandor-server": cluster.urls[0].removeprefix("http://"),
            "mandor-agent": f"127.0.0.1:{port}",
        }
        prometheus = Prometheus(tmp_path / "prometheus", targets)
        prometheus.program.start()
        try:
            yield cluster, prometheus, port
        finally:
            prometheus.program.end()


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text: str = answer.read().decode()
        return text


def promtool(*words: str, given: str = "") -> None:
    """It knows the form, and the conventions."""
    command = [str(find("prometheus", "promtool")), *words]
    done = subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def queries() -> list[str]:
    board = json.loads((DEPLOY / "grafana" / "mandor.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def alert_metrics() -> set[str]:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    return {name for rule in rules for name in re.findall(r"\bmandor_\w+", rule["expr"])}


@pytest.mark.real("prometheus")
@pytest.mark.req("S2-41", "S2-42")
def test_a_real_prometheus_finds_data_for_the_whole_dashboard(watched: tuple[Cluster, Prometheus, int]) -> None:
    cluster, prometheus, port = watched
    cluster.apply(WORK)
    cluster.apply(TOO_LARGE)
    cluster.wait_running("web", 3)
    promtool("check", "metrics", given=read(f"{cluster.urls[0]}/metrics"))
    promtool("check", "metrics", given=read(f"http://127.0.0.1:{port}/metrics"))

    for expression in queries():
        found = eventually(f"data for {expression}", partial(prometheus.query, expression))
        assert all(item["value"][1] != "NaN" or "rate(" in expression for item in found), expression
    waiting = prometheus.query('mandor_instances_waiting{reason="Unschedulable"}')
    assert [item["value"][1] for item in waiting] == ["1"]
    quiet = {"mandor_node_pressure", "mandor_workload_restarts"}  # nothing is wrong here
    for name in alert_metrics() - quiet:
        assert eventually(f"data for {name}", partial(prometheus.query, name))

    cluster.agents["n1"].kill()
    eventually("the loss shows", lambda: prometheus.query('mandor_nodes{phase="Down"} == 1'))


@pytest.mark.real("prometheus")
def test_the_alerts_are_rules_that_prometheus_takes_and_they_fire(tmp_path: Path) -> None:
    alerts = DEPLOY / "prometheus" / "alerts.yml"
    promtool("check", "rules", str(alerts))

    def series(name: str, values: str, **labels: str) -> dict[str, str]:
        shown = ",".join(f'{label}="{value}"' for label, value in labels.items())
        return {"series": f"{name}{{{shown}}}", "values": values}

    case = {
        "interval": "1m",
        "input_series": [
            series("up", "0x40", job="mandor-server", instance="s1"),
            series("mandor_nodes", "1x40", phase="Down"),
            series("mandor_store_ailments", "1x40", instance="s1"),
            series("mandor_tokens_ending", "1x40", role="node"),
            series("mandor_node_pressure", "1x40", node="n1", resource="memory"),
            series("mandor_instances_waiting", "2x40", namespace="default", reason="Unschedulable"),
            series("mandor_workload_instances_wanted", "3x40", namespace="default", workload="web"),
            series("mandor_workload_instances_ready", "1x40", namespace="default", workload="web"),
            series("mandor_workload_restarts", "0+2x40", namespace="default", workload="web"),
            series("mandor_store_commit_duration_seconds_bucket", "0x40", le="1"),
            series("mandor_store_commit_duration_seconds_bucket", "0+60x40", le="10"),
            series("mandor_store_commit_duration_seconds_bucket", "0+60x40", le="+Inf"),
            series("mandor_controller_reconciles_total", "0+60x40", controller="node", result="ok"),
            series("mandor_controller_reconciles_total", "0+60x40", controller="node", result="unavailable"),
            series("mandor_engine_up", "0x40", engine="docker", instance="n1"),
        ],
        "promql_expr_test": [
            {
                "expr": 'count(count by (alertname) (ALERTS{alertstate="firing"}))',
                "eval_time": "35m",
                "exp_samples": [{"labels": "{}", "value": len(_alert_names(alerts))}],
            }
        ],
    }
    test = tmp_path / "test.yml"
    test.write_text(yaml.safe_dump({"rule_files": [str(alerts)], "evaluation_interval": "1m", "tests": [case]}))
    promtool("test", "rules", str(test))


def _alert_names(alerts: Path) -> list[str]:
    return [rule["alert"] for rule in yaml.safe_load(alerts.read_text())["groups"][0]["rules"]]
