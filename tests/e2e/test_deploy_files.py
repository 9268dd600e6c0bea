"""The servers of Compose and of the Helm chart as processes: the same command and settings, on addresses here."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import aio_pika
import pytest
import yaml

from scripts.components import find
from tests.components.etcd import Etcd, Tls
from tests.components.ports import free_port
from tests.components.rabbitmq import RabbitMq
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


MACHINES = [{"name": f"bm-{number}", "ip": f"10.0.0.{number}", "cpu": 64, "memory": 65536} for number in range(3)]
WANTED = {"requested_cpu": 1, "requested_memory": 64, "requested_pool": "default", "dedicated": False}


class Servers:
    """The servers of Compose, each with the settings of its service."""

    def __init__(self, folder: Path, etcd: Etcd, broker: RabbitMq) -> None:
        self.tls = Tls.make(folder / "server-tls")
        self.folder, self.ports, self.programs = folder, list[int](), list[Program]()
        (folder / "machines.json").write_text(json.dumps(MACHINES))
        command, usual = entrypoint()
        services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
        for name in ("server-1", "server-2", "server-3"):
            port, service = free_port(), services[name]
            environ = settings_here(service["environment"], etcd, self.tls, folder, port)
            environ |= {"MANDOR_TASK_QUEUE": broker.url, "MANDOR_INVENTORY": str(folder / "machines.json")}
            words = [*command, *service.get("command", usual), "--data", str(folder / name)]
            self.ports.append(port)
            self.programs.append(Program(name, words, folder / f"{name}.log", environ))

    def call(self, number: int, path: str, body: object = None) -> dict[str, Any]:
        context = ssl.create_default_context(cafile=str(self.tls.ca_file))
        token = (self.folder / "server-1" / "admin.token").read_text().strip()
        request = Request(
            f"https://127.0.0.1:{self.ports[number]}{path}", None if body is None else json.dumps(body).encode()
        )
        request.add_header("Authorization", f"Bearer {token}")
        request.add_header("Content-Type", "application/json")
        with urlopen(request, context=context, timeout=30) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def start(self, number: int) -> None:
        self.programs[number].start()
        eventually("it is ready", lambda: self.call(number, "/readyz"), patience=120)

    def placed(self, number: int) -> str:
        """Ask one server for a machine; return its name."""
        task = eventually("it takes a request", lambda: self.call(number, "/schedule", WANTED))["task_id"]

        def ended() -> dict[str, Any] | None:
            found = self.call(number, f"/result/{task}")
            return found if found["status"] != "processing" else None

        found = eventually("a machine is found", ended, patience=180)
        assert found["status"] == "completed", found
        return str(found["result"]["name"])


async def consumers(broker: RabbitMq) -> int:
    connection = await aio_pika.connect(broker.url)
    async with connection:
        queue = await (await connection.channel()).declare_queue("mandor.tasks.schedule", passive=True)
        return int(queue.declaration_result.consumer_count or 0)


@pytest.mark.real("etcd", "rabbitmq")
@pytest.mark.req("S4-27", "S4-41")
def test_the_servers_of_compose_share_tasks_through_rabbitmq_and_any_one_of_them_is_enough(
    new_etcd: Callable[..., Etcd], tmp_path: Path
) -> None:
    epmd = find("rabbitmq", "epmd")
    assert epmd is not None
    broker = RabbitMq(epmd, tmp_path / "rabbitmq")
    broker.start()
    servers = Servers(tmp_path, new_etcd(), broker)
    try:
        for number in range(3):
            servers.start(number)
        assert servers.placed(1) in {each["name"] for each in MACHINES}
        eventually("every server consumes", lambda: asyncio.run(consumers(broker)) == 3)
        for number in range(2):
            servers.programs[number].kill()
            assert servers.placed(2), "the others go on"
        eventually("the last one consumes", lambda: asyncio.run(consumers(broker)) == 1)
    finally:
        for program in servers.programs:
            program.kill()
        broker.kill()


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
