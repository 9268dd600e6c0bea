"""A server and agents with certificates of the cluster's own authority, which is rotated while work runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.components.ports import free_port
from tests.e2e.cluster import Program, end_units, eventually

MANDOR = [sys.executable, "-m", "mandor.cli.main"]
WORK = (
    "kind: namespace\nname: default\nlevel: privileged\n---\nname: steady\nengine: process\ncommand: [sleep, '1000']\n"
)


def test_work_survives_renewed_certificates_and_a_rotated_authority(tmp_path: Path) -> None:
    home, port = tmp_path / "server", free_port()
    url = f"https://127.0.0.1:{port}"
    serve = ["server", "--data", str(home), "--listen", f"127.0.0.1:{port}", "--tls", "--certificate-life", "15s"]
    server = Program("server", [*MANDOR, *serve], tmp_path / "server.log", {"MANDOR_LEASE": "3s"})

    def mandor(*words: str) -> str:
        # No --ca: the fingerprint in the token is enough.
        token = (home / "admin.token").read_text().strip()
        env = {**os.environ, "MANDOR_SERVER": url, "MANDOR_TOKEN": token, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        env.pop("MANDOR_CA", None)
        done = subprocess.run([*MANDOR, *words], check=False, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def started() -> bool:
        assert server.running, server.text()
        return (home / "admin.token").exists() and "ready at" in server.text()

    def agent(name: str) -> Program:
        words = ["agent", "--data", str(tmp_path / name), "--name", name, "--server", url, "--heartbeat", "500ms"]
        words += ["--join-token-file", str(home / "join.token"), "--engine", "process"]
        return Program(name, [*MANDOR, *words], tmp_path / f"{name}.log")

    def nodes() -> dict[str, str]:
        return {
            each["meta"]["name"]: each["status"]["phase"]
            for each in json.loads(mandor("get", "nodes", "-o", "json"))["items"]
        }

    def instance() -> tuple[str, str, int]:
        (found,) = json.loads(mandor("get", "instances", "-o", "json"))["items"]
        status = found["status"]
        return found["meta"]["uid"], status.get("phase", ""), status.get("restarts", 0)

    first, second = agent("n1"), agent("n2")
    try:
        server.start()
        eventually("it is ready", started)
        first.start()
        eventually("n1 is ready", lambda: nodes() == {"n1": "Ready"})
        (tmp_path / "work.yaml").write_text(WORK)
        mandor("apply", "-f", str(tmp_path / "work.yaml"))
        eventually("it runs", lambda: instance()[1] == "Running")
        before = instance()

        old = mandor("ca", "show").split()[0]
        early = (home / "join.token").read_text()
        mandor("ca", "rotate")
        new = mandor("ca", "show").split()[0]
        assert new != old
        assert early.strip().endswith(old)
        eventually("the tokens carry the new fingerprint", lambda: new in (home / "join.token").read_text())
        second.start()
        eventually("a node joins in the overlap", lambda: nodes() == {"n1": "Ready", "n2": "Ready"})
        eventually("the old authority is dropped", lambda: old not in mandor("ca", "show"), patience=180)
        eventually("n1 renewed after it", lambda: new_only(tmp_path / "n1", new), patience=180)
        assert nodes() == {"n1": "Ready", "n2": "Ready"}
        assert instance() == before
        assert "renewed this node's certificate" in first.text()

        first.kill()
        first.start()
        eventually("it is back", lambda: first.text().count("has joined") == 2)
        assert nodes()["n1"] == "Ready"
    finally:
        for each in (first, second, server):
            each.kill()
        for name in ("n1", "n2"):
            end_units(tmp_path / name)


def new_only(home: Path, fingerprint: str) -> bool:
    """Whether the agent trusts the new authority and no other."""
    from mandor.lib.x509 import fingerprint as of
    from mandor.lib.x509 import split_bundle

    return [of(each) for each in split_bundle((home / "ca.pem").read_text())] == [fingerprint]
