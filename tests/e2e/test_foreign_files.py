"""Files of other tools on a real dockerd and as real processes: applied as they are, and told what is not there."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.components.docker import Docker
from tests.components.image import NAME
from tests.e2e.cluster import Cluster, eventually

MANDOR = Path(sys.executable).with_name("mandor")
FILE = f"""\
apiVersion: v1
kind: Secret
metadata: {{name: door}}
stringData: {{code: open sesame}}
---
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
        command: [sh, -c, 'cat /shared/told /pages/page.txt; echo "$0 $WHO $SAY"; exec sleep 1000', $(GREETING)]
        env:
        - {{name: CODE, valueFrom: {{secretKeyRef: {{name: door, key: code}}}}}}
        - {{name: SAY, value: say $(CODE)}}
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


COMPOSE = f"""\
services:
  db:
    image: {NAME}
    command: sh -c 'cat /run/secrets/key; touch /data/up; exec sleep 1000'
    secrets: [key]
    volumes: [data:/data]
    stop_grace_period: 1s
    healthcheck: {{test: [CMD, test, -e, /data/up], interval: 1s, retries: 30}}
  web:
    image: {NAME}
    entrypoint: [sh, -c]
    command: ['cat /etc/web/*; echo "$$GREETING"; exec sleep 1000']
    environment: ["GREETING=hello ${{WHO:-nobody}}"]
    volumes: [./conf:/etc/web:ro]
    stop_grace_period: 1s
    depends_on: {{db: {{condition: service_healthy}}}}
secrets: {{key: {{file: ./key.txt}}}}
volumes: {{data: {{}}}}
"""
JOB = """\
job "shop" {
  group "web" {
    task "stage" {
      driver = "raw_exec"
      lifecycle { hook = "prestart" }
      config {
        command = "sh"
        args    = ["-c", "echo staged > ${NOMAD_ALLOC_DIR}/told"]
      }
    }
    task "main" {
      driver       = "raw_exec"
      kill_timeout = "1s"
      vault { policies = ["shop"] }
      artifact { source = "WEB/serve" }
      config {
        command = "serve"
        args    = ["${NOMAD_ALLOC_DIR}/told", "${NOMAD_ALLOC_INDEX}"]
      }
      template {
        env         = true
        destination = "secrets/env"
        data        = <<EOT
{{ with secret "kv/data/shop" }}
PASSWORD={{ .Data.data.password }}
{{ end }}
EOT
      }
      template {
        destination = "local/conf"
        data        = "node {{ env \\"node.unique.name\\" }}"
      }
    }
  }
}
"""
SERVE = """#!/bin/sh
cat "$1" local/conf; echo; echo "$2 $PASSWORD"
exec sleep 1000
"""


@pytest.fixture
def docker_cluster(new_docker: Callable[..., Docker], tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as running:
        running.start_server()
        running.start_agent("n1", engines=("all",), environ={"DOCKER_HOST": f"unix://{new_docker().socket}"})
        running.wait_nodes("n1")
        yield running


def mandor(cluster: Cluster, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
    done = subprocess.run([MANDOR, *words], capture_output=True, text=True, env=env, timeout=120, check=False)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done


@pytest.mark.real("docker")
@pytest.mark.req("S0-32")
def test_a_kubernetes_file_runs_as_it_is_and_shows_what_was_left_out(docker_cluster: Cluster, tmp_path: Path) -> None:
    file, cluster = tmp_path / "web.yaml", docker_cluster
    file.write_text(FILE)
    refused = mandor(cluster, "apply", "-f", str(file), "--strict", code=1)
    assert f"{file}:13: metadata.annotations: guessed: they are stored as labels" in refused.stderr
    assert not cluster.items("workloads")

    assert "web-1" in mandor(cluster, "plan", "-f", str(file)).stdout
    told = mandor(cluster, "apply", "-f", str(file)).stderr
    assert "metadata.annotations: guessed: they are stored as labels" in told
    (service,) = eventually("the service exists", lambda: cluster.items("services"))
    assert [(each["port"], each["target"]) for each in service["spec"]["port"].values()] == [(80, "http")]
    cluster.wait_running("web", 2)
    eventually("both are ready", lambda: all(each["status"].get("ready") for each in cluster.instances("web")))
    for name in ("web-0", "web-1"):
        logs = mandor(cluster, "logs", name, "--task", "main").stdout
        assert logs.splitlines() == ["from first", "a page", f"hello {name} say open sesame"]
    scratch = cluster.home("n1") / "volumes" / ".scratch"
    assert len(list(scratch.iterdir())) == 2

    mandor(cluster, "delete", "workload", "web", "--wait", "--timeout", "60s")
    eventually("its folders are gone", lambda: not list(scratch.iterdir()))


@pytest.mark.real("docker")
@pytest.mark.req("S0-32")
def test_a_compose_file_runs_as_it_is_with_its_secret_and_its_folder(docker_cluster: Cluster, tmp_path: Path) -> None:
    cluster, folder = docker_cluster, tmp_path / "shop"
    (folder / "conf").mkdir(parents=True)
    (folder / "conf" / "a.conf").write_text("a = 1\n")
    (folder / "key.txt").write_text("open sesame\n")
    (folder / ".env").write_text("WHO=you\n")
    (folder / "compose.yaml").write_text(COMPOSE)
    told = mandor(cluster, "apply", "-f", str(folder / "compose.yaml"))
    assert "secret default/shop_key created" in told.stdout
    assert "sesame" not in told.stdout + told.stderr
    cluster.wait_running("db", 1)
    cluster.wait_running("web", 1)
    eventually("it has said it", lambda: "hello" in mandor(cluster, "logs", "web-0").stdout)
    assert mandor(cluster, "logs", "db-0").stdout == "open sesame\n"
    assert mandor(cluster, "logs", "web-0").stdout == "a = 1\nhello you\n"
    mandor(cluster, "delete", "-f", str(folder / "compose.yaml"), "--wait", "--timeout", "60s")
    eventually("all is gone", lambda: not cluster.items("instances"))


SUBPATHS = f"""\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: all}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Mi}}}}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {{name: shop}}
spec:
  selector: {{matchLabels: {{app: shop}}}}
  template:
    metadata: {{labels: {{app: shop}}}}
    spec:
      terminationGracePeriodSeconds: 1
      volumes: [{{name: all, persistentVolumeClaim: {{claimName: all}}}}]
      containers:
      - name: db
        image: {NAME}
        command: [sh, -c, 'cat /db/rows; echo row >> /db/rows; exec sleep 1000']
        volumeMounts: [{{name: all, mountPath: /db, subPath: mysql}}]
      - name: look
        image: {NAME}
        command: [sh, -c, 'until test -s /all/mysql/rows; do sleep 0.1; done; echo seen; exec sleep 1000']
        volumeMounts: [{{name: all, mountPath: /all, readOnly: true}}]
"""


@pytest.mark.real("docker")
@pytest.mark.req("S0-32", "S2-39")
def test_data_below_a_subpath_outlives_the_containers(docker_cluster: Cluster, tmp_path: Path) -> None:
    file, cluster = tmp_path / "shop.yaml", docker_cluster
    file.write_text(SUBPATHS)
    for rows in (0, 1):
        mandor(cluster, "apply", "-f", str(file))
        cluster.wait_running("shop", 1)
        eventually("it is seen", lambda: "seen" in mandor(cluster, "logs", "shop-0", "--task", "look").stdout)
        logs = mandor(cluster, "logs", "shop-0", "--task", "db").stdout
        assert logs.count("row\n") == rows
        told = mandor(cluster, "delete", "-f", str(file), "--wait", "--timeout", "60s").stdout
        assert "volume default/all kept" in told


@pytest.mark.real("docker")
@pytest.mark.req("S0-32")
def test_a_service_of_compose_ends_once_and_is_found_by_its_container_name(
    docker_cluster: Cluster, tmp_path: Path
) -> None:
    file, cluster = tmp_path / "compose.yaml", docker_cluster
    file.write_text(
        f"""services:
  db: {{image: {NAME}, command: sleep 1000, container_name: database, stop_grace_period: 1s}}
  once:
    image: {NAME}
    command: [sh, -c, 'until grep -w database /etc/hosts; do sleep 0.1; done; exit 3']
    depends_on: [db]
"""
    )
    mandor(cluster, "apply", "-f", str(file))
    cluster.wait_running("db", 1)
    eventually("it has ended", lambda: [e["status"]["phase"] for e in cluster.instances("once")] == ["Failed"])
    assert "database" in mandor(cluster, "logs", "once-0").stdout
    (ended,) = cluster.instances("once")
    assert (ended["status"]["exit_code"], ended["status"].get("restarts", 0)) == (3, 0)
    assert ended["spec"].get("attempt", 0) == 0


@pytest.mark.real("docker")
@pytest.mark.req("S0-32", "S2-37")
def test_a_named_volume_of_compose_starts_as_in_docker_and_is_kept(docker_cluster: Cluster, tmp_path: Path) -> None:
    file, cluster = tmp_path / "compose.yaml", docker_cluster
    command = "cat /share/text /share/more; stat -c '%u %a' /share; echo more > /share/more; exec sleep 1000"
    file.write_text(
        f"services:\n  db:\n    image: {NAME}\n    command: [sh, -c, {command!r}]\n"
        "    stop_grace_period: 1s\n    volumes: ['data:/share']\nvolumes: {data: }\n"
    )
    for lines in (["from the image", "1234 750"], ["from the image", "more", "1234 750"]):
        mandor(cluster, "apply", "-f", str(file))
        cluster.wait_running("db", 1)
        eventually("it has shown all", lambda: "1234 750" in mandor(cluster, "logs", "db-0").stdout)
        logs = mandor(cluster, "logs", "db-0").stdout.splitlines()
        assert [line for line in logs if "can't open" not in line] == lines
        mandor(cluster, "delete", "-f", str(file), "--wait", "--timeout", "60s")


@pytest.mark.req("S0-32")
def test_a_nomad_job_runs_as_it_is_with_what_it_fetches_and_its_secret(cluster: Cluster, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.mkdir()
    (served / "serve").write_text(SERVE)
    cluster.apply("{kind: secret, name: kv-shop, data: {password: open sesame}}")
    with serving(served) as address:
        job = tmp_path / "shop.nomad.hcl"
        job.write_text(JOB.replace("WEB", address))
        told = mandor(cluster, "apply", "-f", str(job)).stderr
        assert "a secret kv-shop must exist, with password" in told
        cluster.wait_running("shop", 1)
        wanted = ["staged", "node n1", "0 open sesame"]
        eventually(
            "it has said it",
            lambda: mandor(cluster, "logs", "shop-web-0", "--task", "main").stdout.splitlines() == wanted,
        )


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The files of a folder over HTTP, on this machine."""
    handler = functools.partial(QuietHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass
