"""A pipeline that is asked for a machine starts a real agent, which joins by itself; and is asked to take it away."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandor.lib.signing import verify
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually

EXAMPLE = (Path(__file__).parents[2] / "examples" / "node-autoscale.yaml").read_text(encoding="utf-8")
SECRET = b"a secret of some length"


class Pipeline:
    """Somebody else's: takes signed requests, and starts an agent for each machine."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.requests: list[dict[str, Any]] = []
        self.refused = 0
        pipeline = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                good = verify(SECRET, body, dict(self.headers.items()), time.time())
                self.send_response(202 if good else 401)
                self.end_headers()
                if good:
                    pipeline.take(json.loads(body))
                else:
                    pipeline.refused += 1

            def log_message(self, *args: object) -> None:
                pass

        self.port = free_port()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)

    def take(self, request: dict[str, Any]) -> None:
        self.requests.append(request)
        name = request["id"]
        if request["action"] == "create" and name not in self.cluster.agents:
            token = self.folder / f"{name}.token"
            token.write_text(request["join"]["token"])
            environ = {"MANDOR_POOL": request["pool"], "MANDOR_JOIN_TOKEN_FILE": str(token), "MANDOR_HEARTBEAT": "1s"}
            self.cluster.start_agent(name, environ=environ, options=("--capacity", "cpu=2", "--capacity", "memory=1Gi"))
        elif request["action"] == "delete" and name in self.cluster.agents:
            self.cluster.agents[name].end()


@pytest.fixture
def pipeline(tmp_path: Path) -> Iterator[Pipeline]:
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start_server(MANDOR_SECRET_FILES=str(tmp_path))
        made = Pipeline(cluster, tmp_path)
        thread = threading.Thread(target=made.server.serve_forever)
        thread.start()
        try:
            yield made
        finally:
            made.server.shutdown()
            made.server.server_close()
            thread.join()


def _pool(cluster: Cluster) -> Any:
    return next(each for each in cluster.items("node-pools") if each["meta"]["name"] == "burst")


@pytest.mark.req("S2-48", "S0-20", "S0-22")
def test_a_pipeline_is_asked_for_a_machine_that_joins_and_to_take_it_away_when_it_is_idle(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    cluster = pipeline.cluster
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    text = EXAMPLE.replace("9099", str(pipeline.port)).replace("pipeline.secret", secret.name)
    text = text.replace("idle_after: 10m", "idle_after: 5s")
    cluster.apply(text)
    (running,) = cluster.wait_running("reports", 1)
    machine = running["spec"]["node"]
    assert machine.startswith("burst-")
    asked = [each for each in pipeline.requests if each["action"] == "create"]
    assert {each["id"] for each in asked} == {machine}
    assert asked[0]["parameters"] == {"flavor": "m1.small"}
    assert asked[0]["machine"]["cpu"] == "2"
    node = next(each for each in cluster.items("nodes") if each["meta"]["name"] == machine)
    assert node["meta"]["labels"]["from"] == "pipeline"
    status, _ = cluster.call("DELETE", "/v1/workloads/reports")
    assert status == 200
    eventually(
        "the machine is given back",
        lambda: any(each["action"] == "delete" and each["id"] == machine for each in pipeline.requests),
        patience=120,
    )
    eventually("its node is forgotten", lambda: not cluster.items("nodes"))
    eventually("and so is the machine", lambda: not _pool(cluster)["status"]["scaling"].get("machines"))
    assert not pipeline.refused
