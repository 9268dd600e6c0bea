"""A gateway that a cluster places, with real HAProxy, and the workload behind it."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
from pathlib import Path
from typing import Any

from scripts.components import find
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, eventually

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "gateway.yaml"
GREETER = ROOT / "examples" / "ports.yaml"


def program() -> str:
    """Return the path of HAProxy's start script, or of an installed HAProxy."""
    for folder in os.environ["PATH"].split(":"):
        if os.access(f"{folder}/haproxy", os.X_OK):
            return f"{folder}/haproxy"
    return str(find("haproxy"))


class PlacedGateway:
    """The workload of examples/gateway.yaml, on free ports of this machine."""

    def __init__(self, cluster: Cluster, node: str, http: int = 0) -> None:
        """`http`: the port of HTTP; 0: a free one."""
        self.cluster = cluster
        self.http, self.https = http or free_port(), free_port()
        status, made = cluster.call("POST", "/v1/tokens", {"identity": "gateway", "role": "gateway"})
        assert status in {200, 201}, made
        cluster.apply(json.dumps({"kind": "secret", "name": "gateway-token", "value": made["token"]}))
        assert cluster.mandor("label", node, "gateway=yes").returncode == 0
        self.text = self.manifest()
        cluster.apply(self.text)
        cluster.wait_running("gateway", 1)

    def manifest(self) -> str:
        """Return the example with the ports, programs and server of this test."""
        state = str(self.cluster.directory / "gateway")
        options = f"--listen 127.0.0.1 --http {self.http} --https {self.https} --haproxy {program()} --dir {state}"
        words = ", ".join([sys.executable, "-m", "mandor.cli.main", "gateway", "{}", *options.split()])
        text = EXAMPLE.read_text().replace("http://127.0.0.1:8080", self.cluster.urls[0])
        for task in ("proxy", "run"):
            text = text.replace(f"[mandor, gateway, {task}]", f"[{words.format(task)}]")
        text = text.replace("{port: 80, host: 80}", f"{{port: {self.http}, host: {self.http}}}")
        return text.replace("{port: 443, host: 443}", f"{{port: {self.https}, host: {self.https}}}")

    def ask(self, path: str = "/", *, host: str = "shop.test", trust: ssl.SSLContext | None = None) -> tuple[int, str]:
        """Send a request over a connection of its own."""
        kind: Any = http.client.HTTPSConnection if trust is not None else http.client.HTTPConnection
        given = {"context": trust} if trust is not None else {}
        connection = kind("127.0.0.1", self.https if trust is not None else self.http, timeout=30, **given)
        try:
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def answers(self, host: str = "shop.test") -> None:
        """Wait until the route of a host answers."""

        def so() -> bool:
            try:
                return self.ask(host=host)[0] == 200
            except (OSError, http.client.HTTPException):
                return False

        eventually(f"{host} answers", so)


def greeter(replicas: int, step: int = 0, *, expose: str = "{host: shop.test, tls: off}") -> str:
    """Return examples/ports.yaml, exposed."""
    text = GREETER.read_text().replace("replicas: 3", f"replicas: {replicas}")
    text += f"\nservices: [{{name: shop, port: {{http: 80}}, expose: {expose}}}]\nstop: {{grace: 5s}}\n"
    return f"{text}env: {{STEP: '{step}'}}\nupdate: {{min_healthy: 500ms}}\n"
