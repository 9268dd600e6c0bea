"""A Kubernetes file on a real dockerd: applied as it is, and told what of it is not there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.components.docker import Docker
from tests.components.image import NAME
from tests.e2e.cluster import Cluster, eventually

pytestmark = pytest.mark.real("docker")

MANDOR = Path(sys.executable).with_name("mandor")
FILE = f"""\
apiVersion: v1
kind: ConfigMap
metadata: {{name: words}}
data: {{greeting: hello, page.txt: "a page\\n"}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: web, annotations: {{note: nobody reads it}}}}
spec:
  replicas: 2
  selector: {{matchLabels: {{app: web}}}}
  template:
    metadata: {{labels: {{app: web}}}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes:
      - {{name: shared, emptyDir: {{}}}}
      - {{name: pages, configMap: {{name: words}}}}
      initContainers:
      - name: first
        image: {NAME}
        command: [sh, -c, "echo from first > /shared/told"]
        volumeMounts: [{{name: shared, mountPath: /shared}}]
      containers:
      - name: main
        image: {NAME}
        command: [sh, -c, 'cat /shared/told /pages/page.txt; echo "$0 $WHO"; exec sleep 1000', $(GREETING)]
        env:
        - {{name: GREETING, valueFrom: {{configMapKeyRef: {{name: words, key: greeting}}}}}}
        - {{name: WHO, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
        ports: [{{name: http, containerPort: 8080}}]
        resources: {{limits: {{memory: 32Mi}}}}
        securityContext:
          readOnlyRootFilesystem: true
          allowPrivilegeEscalation: false
          capabilities: {{drop: [ALL]}}
        readinessProbe: {{exec: {{command: [test, -e, /shared/told]}}, periodSeconds: 1}}
        volumeMounts:
        - {{name: shared, mountPath: /shared}}
        - {{name: pages, mountPath: /pages}}
---
apiVersion: v1
kind: Service
metadata: {{name: web}}
spec: {{selector: {{app: web}}, ports: [{{port: 80, targetPort: http}}]}}
"""


@pytest.fixture
def cluster(new_docker: Callable[..., Docker], tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        running.start_server()
        running.start_agent("n1", engines=(), environ={"DOCKER_HOST": f"unix://{new_docker().socket}"})
        running.wait_nodes("n1")
        yield running


def mandor(cluster: Cluster, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
    done = subprocess.run([MANDOR, *words], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done


@pytest.mark.req("S0-32")
def test_a_kubernetes_file_runs_as_it_is_and_says_what_was_left_out(cluster: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "web.yaml"
    file.write_text(FILE)
    refused = mandor(cluster, "apply", "-f", str(file), "--strict", code=1)
    assert f"{file}:8: metadata.annotations: dropped" in refused.stderr
    assert not cluster.items("workloads")

    assert "web-1" in mandor(cluster, "plan", "-f", str(file)).stdout
    told = mandor(cluster, "apply", "-f", str(file)).stderr
    assert "metadata.annotations: dropped: there are no annotations" in told
    assert "callers use the port that it listens on, 8080" in told
    cluster.wait_running("web", 2)
    eventually("both are ready", lambda: all(each["status"].get("ready") for each in cluster.instances("web")))
    for name in ("web-0", "web-1"):
        logs = mandor(cluster, "logs", name, "--task", "main").stdout
        assert logs.splitlines() == ["from first", "a page", f"hello {name}"]
    scratch = cluster.home("n1") / "volumes" / ".scratch"
    assert len(list(scratch.iterdir())) == 2

    mandor(cluster, "delete", "workload", "web", "--wait", "--timeout", "60s")
    eventually("its folders are gone", lambda: not list(scratch.iterdir()))
