"""Several servers on one etcd; a server for others, with TLS and tokens; a cluster that moves house."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path

import pytest
import trustme

from mandor.client.sync import Client
from mandor.errors import MandorError
from tests.components.etcd import Etcd
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, Program, eventually

TALKER = "name: talker\nengine: process\ncommand: [sh, -c, 'echo one; exec sleep 1000']\n"


@pytest.mark.real("etcd")
@pytest.mark.req("S0-7", "S2-23", "S0-30")
def test_two_servers_share_one_etcd_and_either_one_may_die(tmp_path: Path, etcd: Etcd) -> None:
    store = f"etcd://{','.join(etcd.endpoints)}{etcd.prefix()}"
    with Cluster(tmp_path, store=store) as cluster:
        cluster.start_server()
        cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(TALKER, server=1)
        (before,) = cluster.wait_running("talker", 1)

        def read_logs(server: int) -> bytes:
            status, body = cluster.call("GET", "/v1/instances/talker-0/logs", server=server)
            return body if status == 200 else b""

        for server in (0, 1):
            # The agent dials back to whichever server holds the caller.
            assert eventually(f"logs through server {server}", partial(read_logs, server)) == b"one\n"

        cluster.servers[0].kill()
        cluster.urls[0] = cluster.urls[1]
        cluster.apply(TALKER.replace("talker", "second"))
        cluster.wait_running("second", 1)
        (after,) = cluster.instances("talker", phase="Running")
        assert after["meta"]["uid"] == before["meta"]["uid"]
        assert after["status"].get("restarts", 0) == 0


@pytest.mark.real("etcd")
@pytest.mark.req("S0-7")
def test_without_a_majority_of_etcd_the_server_logs_and_doctor_name_etcd(tmp_path: Path, etcd_cluster: Etcd) -> None:
    store = f"etcd://{','.join(etcd_cluster.endpoints)}{etcd_cluster.prefix()}"
    with Cluster(tmp_path, store=store, settings={"MANDOR_LOST_AFTER": "1h", "MANDOR_SUSPECT_AFTER": "1h"}) as cluster:
        cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(TALKER)
        cluster.wait_running("talker", 1)
        for member in (0, 1):
            etcd_cluster.kill(member)
        eventually("the server is not ready", lambda: cluster.call("GET", "/readyz")[0] == 503)

        says = "etcd has no majority of members that answer"
        for words in (["logs", "talker-0"], ["exec", "talker-0", "--", "true"]):
            done = cluster.mandor(*words)
            assert done.returncode == 1
            assert says in done.stderr, done.stderr
        found = cluster.mandor("doctor")
        assert found.returncode == 1
        assert says in found.stdout, found.stdout
        assert "start the missing etcd members" in found.stdout
        assert "--roles" not in found.stdout
        assert cluster.call("GET", "/v1/nodes")[0] == 200, "reads are answered from memory"

        for member in (0, 1):
            etcd_cluster.start(member, wait=False)
        cluster.wait_ready()
        eventually("logs again", lambda: cluster.mandor("logs", "talker-0").stdout == "one\n")


@pytest.mark.real("etcd")
@pytest.mark.req("S0-7", "S0-30")
def test_a_server_that_is_stopped_in_its_tracks_holds_up_neither_people_nor_nodes(tmp_path: Path, etcd: Etcd) -> None:
    store = f"etcd://{','.join(etcd.endpoints)}{etcd.prefix()}"
    # Long enough for two questions without an answer, and shorter than to wait for one.
    settings = {"MANDOR_SUSPECT_AFTER": "15s", "MANDOR_LOST_AFTER": "25s"}
    with Cluster(tmp_path, store=store, settings=settings) as cluster:
        cluster.start_server()
        cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(TALKER)
        (before,) = cluster.wait_running("talker", 1)

        both = ",".join(cluster.urls)
        assert cluster.servers[0].process is not None
        cluster.servers[0].process.send_signal(signal.SIGSTOP)
        cluster.urls[0] = cluster.urls[1]
        (tmp_path / "second.yaml").write_text(TALKER.replace("talker", "second"))
        for words in (["get", "nodes"], ["apply", "-f", str(tmp_path / "second.yaml")]):
            done = cluster.mandor("--server", both, *words)
            assert done.returncode == 0, done.stderr
        cluster.wait_running("second", 1)
        (after,) = cluster.instances("talker", phase="Running")
        assert after["meta"]["uid"] == before["meta"]["uid"]
        assert after["status"].get("restarts", 0) == 0


def _work(name: str, pool: str) -> str:
    return f"name: {name}\nengine: process\ncommand: [sleep, '1000']\nplacement: {{pool: {pool}}}\n"


@pytest.mark.real("etcd")
@pytest.mark.req("S0-7", "S1-30")
def test_two_schedulers_place_the_work_of_their_own_pools_and_one_may_die(tmp_path: Path, etcd: Etcd) -> None:
    store = f"etcd://{','.join(etcd.endpoints)}{etcd.prefix()}"
    with Cluster(tmp_path, store=store) as cluster:
        cluster.start_server(MANDOR_POOLS="default")
        cluster.start_server(MANDOR_POOLS="gpu")
        cluster.start_agent("d1")
        cluster.start_agent("g1", environ={"MANDOR_POOL": "gpu"})
        cluster.wait_nodes("d1", "g1")
        for name, pool in (("plain", "default"), ("train", "gpu")):
            cluster.apply(_work(name, pool))
            (placed,) = cluster.wait_running(name, 1)
            assert placed["spec"]["node"] == {"default": "d1", "gpu": "g1"}[pool]

        cluster.servers[1].kill()
        cluster.urls[1] = cluster.urls[0]
        cluster.apply(_work("second", "default"))
        cluster.wait_running("second", 1)
        # Nobody takes over what belongs to the other one; and it is said.
        cluster.apply(_work("late", "gpu") + "---\n" + _work("vm", "metal"))

        def told(name: str) -> str:
            (each,) = cluster.instances(name) or [{"status": {}}]
            return str(each["status"].get("message", ""))

        eventually("nobody takes metal", lambda: told("vm") == "no scheduler takes the pool metal")
        gone = "no scheduler takes the pool gpu: its owner is gone"
        eventually("gpu's scheduler is gone", lambda: told("late") == gone)
        status, body = cluster.call("GET", "/v1/explain/instances/late-0")
        assert status == 200
        assert gone in body["summary"]
        (still,) = cluster.instances("train", phase="Running")
        assert still["status"].get("restarts", 0) == 0

        cluster.start_server(MANDOR_POOLS="gpu")
        (placed,) = cluster.wait_running("late", 1)
        assert placed["spec"]["node"] == "g1"


@pytest.mark.req("S0-4")
def test_a_server_on_another_address_has_tls_without_further_settings(tmp_path: Path) -> None:
    """Its certificate comes from the cluster's own authority; plain HTTP is not spoken there."""
    port = free_port()
    command = [sys.executable, "-m", "mandor.cli.main", "server", "--data", str(tmp_path / "data")]
    server = Program("server", [*command, "--listen", f"0.0.0.0:{port}"], tmp_path / "log")
    server.start()
    try:
        token = eventually("the token is written", lambda: _text_of(tmp_path / "data" / "admin.token"))
        asking = Client([f"https://127.0.0.1:{port}"], token=token)
        eventually("it answers over TLS", lambda: _answers(asking))
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10)
    finally:
        server.end()


def _text_of(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def _answers(client: Client) -> bool:
    try:
        client.list("nodes")
    except MandorError:
        return False
    return True


@pytest.fixture
def certificates(tmp_path: Path) -> tuple[Path, Path, Path]:
    """CA, certificate and key for localhost."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    paths = tmp_path / "ca.pem", tmp_path / "cert.pem", tmp_path / "key.pem"
    authority.cert_pem.write_to_path(paths[0])
    issued.cert_chain_pems[0].write_to_path(paths[1])
    issued.private_key_pem.write_to_path(paths[2])
    return paths


def mandor(*words: str, url: str, ca: Path, token: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "MANDOR_SERVER": url, "MANDOR_TOKEN": token}
    command = [sys.executable, "-m", "mandor.cli.main", "--ca", str(ca), *words]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, env=env)


def test_a_server_with_tls_and_tokens_serves_callers_with_a_token(
    tmp_path: Path, certificates: tuple[Path, Path, Path]
) -> None:
    ca, cert, key = certificates
    home, url = tmp_path / "server", f"https://localhost:{(port := free_port())}"
    base = [sys.executable, "-m", "mandor.cli.main"]
    tls = ["--tls-cert", str(cert), "--tls-key", str(key)]
    joining = ["--join-token-file", str(home / "join.token"), "--heartbeat", "500ms"]
    server = Program(
        "server",
        [*base, "server", "--data", str(home), "--listen", f"127.0.0.1:{port}", "--address", url, *tls],
        tmp_path / "server.log",
    )
    agent = Program(
        "agent",
        [
            *base,
            "agent",
            "--data",
            str(tmp_path / "n1"),
            "--name",
            "n1",
            "--server",
            url,
            "--server-ca",
            str(ca),
            *joining,
        ],
        tmp_path / "agent.log",
    )
    try:
        server.start()
        context = ssl.create_default_context(cafile=str(ca))
        eventually(
            "it is ready", lambda: urllib.request.urlopen(f"{url}/readyz", context=context, timeout=5).status == 200
        )
        agent.start()
        admin = (home / "admin.token").read_text().strip()
        assert (home / "admin.token").stat().st_mode & 0o077 == 0

        refused = mandor("get", "nodes", url=url, ca=ca)
        assert refused.returncode == 1
        assert "token" in refused.stderr
        eventually("the node is ready", lambda: "Ready" in mandor("get", "nodes", url=url, ca=ca, token=admin).stdout)

        made = mandor("token", "create", "--role", "viewer", "ani", url=url, ca=ca, token=admin)
        assert made.returncode == 0, made.stderr
        viewer = made.stdout.strip().split()[-1]
        assert mandor("get", "nodes", url=url, ca=ca, token=viewer).returncode == 0
        denied = mandor("cordon", "n1", url=url, ca=ca, token=viewer)
        assert denied.returncode == 1
        assert "may not" in denied.stderr
        assert admin not in server.text() + agent.text()
        assert (tmp_path / "server" / "join.token").read_text().strip() not in server.text() + agent.text()
    finally:
        agent.kill()
        server.kill()


@pytest.mark.req("S0-18", "S2-22")
def test_a_backup_is_restored_and_running_work_is_neither_killed_nor_restarted(tmp_path: Path) -> None:
    def command(*words: str) -> None:
        env = {**os.environ, "MANDOR_SERVER": cluster.urls[0]}
        done = subprocess.run(
            [sys.executable, "-m", "mandor.cli.main", *words], check=False, capture_output=True, text=True, env=env
        )
        assert done.returncode == 0, done.stderr

    with Cluster(tmp_path) as cluster:
        server = cluster.start_server()
        agent = cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(TALKER)
        (before,) = cluster.wait_running("talker", 1)
        command("backup", str(tmp_path / "saved"))
        cluster.apply(TALKER.replace("talker", "unknown"))  # what the backup does not know
        cluster.wait_running("unknown", 1)
        work = {path.name for path in cluster.units("n1")}
        assert len(work) == 2

        server.kill()
        for path in (tmp_path / "server0").glob("state.db*"):
            path.unlink()
        command("restore", str(tmp_path / "saved"), "--data", str(tmp_path / "server0"))
        server.start()
        cluster.wait_ready()
        cluster.wait_nodes("n1")

        def held() -> bool:
            return "unknown" in cluster.call("GET", "/v1/nodes/n1")[1]["status"]["facts"].get("held", "")

        eventually("the node tells what it holds", held, patience=120)
        (after,) = cluster.instances("talker", phase="Running")
        assert after["meta"]["uid"] == before["meta"]["uid"]
        assert after["status"].get("restarts", 0) == 0
        assert {path.name for path in cluster.units("n1")} == work
        assert agent.running
        assert cluster.call("GET", "/v1")[1]["cluster"]["epoch"] == 2
