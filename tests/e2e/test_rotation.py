"""Certificates, their authority and tokens are changed while everybody goes on: nobody is refused for a moment."""

from __future__ import annotations

import os
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme

from mandor.client.sync import Client
from mandor.errors import MandorError, Unauthenticated
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, Program, end_units, eventually

WORK = "name: {name}\nengine: process\ncommand: [sleep, '1000']\n"
SPACE = "kind: namespace\nname: default\nlevel: privileged\n---\n"
MANDOR = [sys.executable, "-m", "mandor.cli.main"]


class Asking:
    """Somebody who asks again and again, each time over a new connection, with the token that they have then."""

    def __init__(self, url: str, ca: Path, token: str) -> None:
        self.url, self.ca, self.token = url, ca, token
        self.answered = 0
        self.refused: list[MandorError] = []

    def ask(self) -> None:
        Client([self.url], token=self.token, ca_file=str(self.ca)).list("nodes")

    @contextmanager
    def on_and_on(self) -> Iterator[Callable[[], None]]:
        """Gives a function that waits until they were answered a few times more."""
        over = threading.Event()

        def work() -> None:
            while not over.wait(0.05):
                try:
                    self.ask()
                    self.answered += 1
                except MandorError as error:
                    self.refused.append(error)

        def more() -> None:
            wanted = self.answered + 3
            eventually("they are answered, or refused", lambda: self.refused or self.answered >= wanted)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield more
        finally:
            over.set()
            thread.join()


def put(path: Path, data: bytes) -> None:
    """At once, as whoever renews certificates does it."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


@pytest.mark.req("S0-30")
def test_certificates_authority_and_tokens_are_rotated_and_no_request_fails(tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    home, url = tmp_path / "server", f"https://localhost:{(port := free_port())}"
    ca, cert, key = (tmp_path / name for name in ("ca.pem", "cert.pem", "key.pem"))

    def certify(authority: trustme.CA) -> None:
        issued = authority.issue_cert("localhost")
        # The one without the other does not fit, and is not taken up.
        put(cert, issued.cert_chain_pems[0].bytes())
        put(key, issued.private_key_pem.bytes())

    def shown_by(authority: trustme.CA) -> bool:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
                context.wrap_socket(raw, server_hostname="localhost").close()
        except ssl.SSLError:
            return False
        return True

    def mandor(*words: str) -> str:
        env = {**os.environ, "MANDOR_SERVER": url, "MANDOR_TOKEN": asking.token, "MANDOR_CA": str(ca)}
        done = subprocess.run([*MANDOR, *words], check=False, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def runs(name: str) -> bool:
        found, _ = Client([url], token=asking.token, ca_file=str(ca)).list("instances")
        return any(each["spec"]["workload"] == name and each["status"].get("phase") == "Running" for each in found)

    def run(name: str) -> None:
        (tmp_path / f"{name}.yaml").write_text(SPACE + WORK.format(name=name))
        mandor("apply", "-f", str(tmp_path / f"{name}.yaml"))
        eventually(f"{name} runs", lambda: runs(name))

    certify(old)
    put(ca, old.cert_pem.bytes())
    serve = ["server", "--data", str(home), "--listen", f"127.0.0.1:{port}", "--address", url]
    serve += ["--tls-cert", str(cert), "--tls-key", str(key)]
    server = Program("server", [*MANDOR, *serve], tmp_path / "log", {"MANDOR_LEASE": "3s"})
    words = ["agent", "--data", str(tmp_path / "n1"), "--name", "n1", "--server", url, "--server-ca", str(ca)]
    words += ["--join-token-file", str(home / "join.token"), "--heartbeat", "500ms", "--engine", "process"]
    agent = Program("agent", [*MANDOR, *words], tmp_path / "agent.log")
    try:
        server.start()
        eventually("it listens", lambda: shown_by(old))
        agent.start()
        asking = Asking(url, ca, (home / "admin.token").read_text().strip())
        run("first")
        with asking.on_and_on() as more:
            put(ca, old.cert_pem.bytes() + new.cert_pem.bytes())
            more()
            certify(new)
            eventually("the new certificate is shown", lambda: shown_by(new))
            more()
            put(ca, new.cert_pem.bytes())
            more()
            before, tokens = asking.token, Client([url], token=asking.token, ca_file=str(ca)).list("tokens")[0]
            admin = next(each["meta"]["name"] for each in tokens if each["spec"]["role"] == "admin")
            asking.token = mandor("token", "rotate", admin, "--overlap", "1h").strip().split()[-1]
            more()
            assert Client([url], token=before, ca_file=str(ca)).list("nodes")[0]
            mandor("token", "revoke", admin)
            more()
        assert asking.refused == []
        with pytest.raises(Unauthenticated):
            Client([url], token=before, ca_file=str(ca)).list("nodes")
        # Whoever has been connected all the time has to come again, and trusts nobody but the new authority.
        server.kill()
        server.start()
        eventually("it listens", lambda: shown_by(new))
        run("second")
        assert runs("first")
    finally:
        agent.kill()
        server.kill()
        end_units(tmp_path / "n1")


@pytest.mark.req("S0-22", "S0-30")
def test_a_node_renews_its_credential_while_it_beats_and_works(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        cluster.start_server()
        agent = cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(WORK.format(name="first"))
        (before,) = cluster.wait_running("first", 1)
        file = cluster.home("n1") / "credential"
        old = file.read_text().strip()
        told = cluster.mandor("token", "rotate", "node.n1", "--overlap", "1h")
        assert told.returncode == 0, told.stderr
        assert "node n1 renewed its credential" in told.stdout
        eventually("it is kept", lambda: file.read_text().strip() not in {"", old})
        new = file.read_text().strip()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        for text in (old, new):
            assert Client([cluster.urls[0]], token=text).get("nodes", "n1")

        # The node goes on, and comes back with what it has now.
        cluster.apply(WORK.format(name="second"))
        cluster.wait_running("second", 1)
        agent.kill()
        agent.start()
        cluster.apply(WORK.format(name="third"))
        cluster.wait_running("third", 1)
        assert "heartbeat failed" not in agent.text()
        (node,) = cluster.items("nodes")
        assert node["status"]["phase"] == "Ready"
        assert "renewal" not in node["spec"]
        (after,) = cluster.instances("first", phase="Running")
        assert after["meta"]["uid"] == before["meta"]["uid"]
        assert [each for each in cluster.items("events") if each["spec"]["reason"] == "CredentialRenewed"]
