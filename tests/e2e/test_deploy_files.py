"""The servers of Compose and of the Helm chart as processes: the same command and settings, on addresses here."""

from __future__ import annotations

import re
import ssl
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml

from tests.components.etcd import Etcd, Tls
from tests.components.ports import free_port
from tests.docs.chart import render
from tests.docs.text import ROOT
from tests.e2e.cluster import Program, eventually

DOCKER = ROOT / "deploy" / "docker"


def entrypoint() -> tuple[list[str], list[str]]:
    """Of the image: the command, and what it is given where nothing else is said."""
    text = (DOCKER / "Dockerfile").read_text()
    found = [re.findall(rf'^{word} \["(.*)"\]$', text, re.MULTILINE)[0].split('", "') for word in ("ENTRYPOINT", "CMD")]
    assert found[0] == ["mandor"]
    return [sys.executable, "-m", "mandor.cli.main"], found[1]


def settings_here(written: dict[str, str], etcd: Etcd, tls: Tls, folder: Path, port: int) -> dict[str, str]:
    """The same settings, with what is elsewhere on this machine."""
    (folder / "secrets.key").write_text("ab" * 32)
    here = {
        "MANDOR_LISTEN": f"127.0.0.1:{port}",
        "MANDOR_ADDRESS": f"https://127.0.0.1:{port}",
        "MANDOR_STORE": f"{'etcds' if etcd.tls else 'etcd'}://{etcd.endpoints[0]}/deploy",
        "MANDOR_STORE_CA": str(tls.ca_file),
        "MANDOR_STORE_CERT": str(tls.cert_file),
        "MANDOR_STORE_KEY": str(tls.key_file),
        "MANDOR_TLS_CERT": str(tls.server_cert_file),
        "MANDOR_TLS_KEY": str(tls.server_key_file),
        "MANDOR_SECRETS_KEY": str(folder / "secrets.key"),
        "MANDOR_TASK_QUEUE": f"amqp://mandor:mandor@127.0.0.1:{free_port()}/",
    }
    return {name: here.get(name, value) for name, value in written.items()}


def check_answers(program: Program, tls: Tls, port: int, *paths: str) -> None:
    context = ssl.create_default_context(cafile=str(tls.ca_file))

    def answers() -> bool:
        assert program.running, program.text()[-3000:]
        for path in paths:
            with urlopen(f"https://127.0.0.1:{port}{path}", context=context, timeout=5) as response:
                if response.status != 200:
                    return False
        return True

    program.start()
    try:
        eventually("it is ready", answers)
    finally:
        program.end()
    assert '"level":"info"' in program.text().replace(" ", ""), "it logs as it is told to"


@pytest.mark.real("etcd")
@pytest.mark.req("S4-27", "S4-41")
def test_a_server_of_compose_starts_and_is_ready(new_etcd: object, tmp_path: Path) -> None:
    etcd = new_etcd()  # type: ignore[operator]
    tls, port = Tls.make(tmp_path / "server-tls"), free_port()
    written = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]["server-1"]
    command, usual = entrypoint()
    environ = settings_here(written["environment"], etcd, tls, tmp_path, port)
    data = ["--data", str(tmp_path / "data")]  # in the image: the folder it works in
    program = Program("server-1", [*command, *written.get("command", usual), *data], tmp_path / "log", environ)
    check_answers(program, tls, port, "/readyz", "/healthz")


@pytest.mark.real("etcd")
@pytest.mark.req("S4-39")
def test_a_server_of_the_chart_starts_and_answers_its_probes(etcd_tls: Etcd, tmp_path: Path) -> None:
    objects = render(ROOT / "deploy" / "helm" / "mandor", release="seed-1")
    (servers,) = [each for each in objects if each["kind"] == "StatefulSet"]
    (container,) = servers["spec"]["template"]["spec"]["containers"]
    tls, port = etcd_tls.tls, free_port()
    assert tls is not None
    written = {each["name"]: each["value"] for each in container["env"] if "value" in each}
    environ = settings_here(written, etcd_tls, tls, tmp_path, port)
    words = [str(tmp_path / "data") if each == "/var/lib/mandor/data" else each for each in container["args"]]
    program = Program("seed-1-0", [*entrypoint()[0], *words], tmp_path / "log", environ)
    probes = [container[name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    assert {each["scheme"] for each in probes} == {"HTTPS"}
    check_answers(program, tls, port, *(each["path"] for each in probes))
