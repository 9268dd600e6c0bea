"""The files under deploy/ name settings and options that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from mandor.importers.base import Options, Source
from mandor.importers.compose import ComposeImporter
from mandor.importers.kubernetes import KubernetesImporter
from mandor.placement.plugins.control_plane import ControlPlane, ControlPlaneArgs
from mandor.roots.settings import AgentRootSettings, ServerSettings, load
from tests.docs.chart import render
from tests.docs.text import ROOT, blocks

UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
SETTINGS = [block.text for block in blocks(ROOT / "deploy" / "README.md") if block.language == "toml"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_starts_a_command_that_exists(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), flags=re.MULTILINE)
    _, command, *words = shlex.split(line)
    help_text = subprocess.run(
        [Path(sys.executable).with_name("mandor"), command, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    options = [word for word in words if word.startswith("--")]
    assert options
    assert [option for option in options if option not in help_text] == []


def test_restarting_the_agent_ends_only_the_agent() -> None:
    assert "KillMode=process" in (ROOT / "deploy" / "systemd" / "mandor-agent.service").read_text()


def test_the_units_give_their_programs_only_what_they_need() -> None:
    units = {path.stem: path.read_text().splitlines() for path in UNITS}
    server, agent = units["mandor-server"], units["mandor-agent"]
    for line in ("User=mandor", "NoNewPrivileges=true", "ProtectSystem=strict", "CapabilityBoundingSet=", "UMask=0077"):
        assert line in server
    assert any(line.startswith("SystemCallFilter=") for line in server)
    (bounding,) = (line.partition("=")[2].split() for line in agent if line.startswith("CapabilityBoundingSet="))
    assert not {"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SETUID", "CAP_NET_ADMIN"} & set(bounding)
    assert "NoNewPrivileges=true" in agent
    drop_in = (ROOT / "deploy" / "systemd" / "process.conf").read_text()
    assert "--engine all" in drop_in, "an agent offers the process engine only by name"


@pytest.mark.parametrize("text", SETTINGS, ids=lambda text: text.splitlines()[0].strip("[]"))
def test_the_settings_are_understood(text: str, tmp_path: Path) -> None:
    (section,) = tomllib.loads(text)
    file = tmp_path / "mandor.toml"
    file.write_text(text)
    kind: type[ServerSettings | AgentRootSettings] = ServerSettings if section == "server" else AgentRootSettings
    settings = load(kind, section, file=str(file), environ={}, flags={})
    assert settings != kind()


# Helm and Compose.

CHART = ROOT / "deploy" / "helm" / "mandor"
COMPOSE = ROOT / "deploy" / "docker" / "compose.yaml"


def settings_known(names: Iterable[str]) -> None:
    known = {f"MANDOR_{field.upper()}" for field in ServerSettings.__struct_fields__}
    assert [name for name in names if name.startswith("MANDOR_") and name not in known] == []


@pytest.mark.req("S4-39")
def test_the_chart_makes_servers_that_keep_apart_and_are_reached() -> None:
    objects = {(each["kind"], each["metadata"]["name"]): each for each in render(CHART, release="seed-1")}
    servers = objects["StatefulSet", "seed-1"]["spec"]
    (container,) = servers["template"]["spec"]["containers"]
    assert servers["replicas"] == 3
    settings_known(each["name"] for each in container["env"])
    assert {"name": "MANDOR_LOG_STYLE", "value": "json"} in container["env"]
    assert "podAntiAffinity" in servers["template"]["spec"]["affinity"]
    labels = servers["template"]["metadata"]["labels"]
    for kind, name in (("Service", "seed-1"), ("Service", "seed-1-api")):
        assert objects[kind, name]["spec"]["selector"].items() <= labels.items()
    assert servers["serviceName"] == "seed-1", "the address of a server has the name of this service in it"
    mounts = {each["name"] for each in container["volumeMounts"]}
    assert mounts == {each["name"] for each in servers["template"]["spec"]["volumes"]}
    paths = [each["value"] for each in container["env"] if str(each.get("value", "")).startswith("/etc/")]
    folders = [each["mountPath"] for each in container["volumeMounts"]]
    assert all(any(path.startswith(f"{folder}/") for folder in folders) for path in paths)


@pytest.mark.req("S4-27")
@pytest.mark.parametrize("brokers", [("rabbitmq",), ("nats",), ("rabbitmq", "nats"), ()])
def test_brokers_for_development_come_when_they_are_asked_for(brokers: tuple[str, ...]) -> None:
    objects = render(CHART, values={each: {"enabled": True} for each in brokers} | {"spread": False})
    found = {each["metadata"]["name"] for each in objects if each["kind"] == "Deployment"}
    assert found == {f"mandor-{each}" for each in brokers}
    assert not [each for each in objects if "affinity" in str(each)]


@pytest.mark.req("S4-27")
def test_the_servers_of_the_chart_find_its_broker_by_the_secret_it_makes() -> None:
    values = {"rabbitmq": {"enabled": True, "password": "s3cret"}, "taskQueueSecret": "seed-1-rabbitmq"}
    objects = {
        (each["kind"], each["metadata"]["name"]): each for each in render(CHART, values=values, release="seed-1")
    }
    (container,) = objects["StatefulSet", "seed-1"]["spec"]["template"]["spec"]["containers"]
    (entry,) = [each for each in container["env"] if each["name"] == "MANDOR_TASK_QUEUE"]
    where = entry["valueFrom"]["secretKeyRef"]
    secret = objects["Secret", where["name"]]["stringData"]
    settings = load(ServerSettings, "server", environ={"MANDOR_TASK_QUEUE": secret[where["key"]]}, flags={})
    queue = urlsplit(settings.task_queue)
    assert (queue.username, queue.password) == (secret["user"], secret["password"]) == ("mandor", "s3cret")
    service = objects["Service", str(queue.hostname)]["spec"]
    assert queue.port in {each["port"] for each in service["ports"]}
    assert "MANDOR_TASK_QUEUE" not in str(render(CHART)), "without a secret, whoever leads works on them"


def test_our_own_importer_reads_what_the_chart_makes() -> None:
    values = {"rabbitmq": {"enabled": True}, "nats": {"enabled": True}}
    text = yaml.safe_dump_all(render(CHART, values=values))
    made = KubernetesImporter().read([Source("chart.yaml", text)], Options())
    names = {each.manifest["name"] for each in made.made if each.manifest.get("kind", "workload") == "workload"}
    assert names == {"mandor", "mandor-rabbitmq", "mandor-nats"}


def _filled(text: str) -> str:
    """`${NAME-otherwise}` as Compose fills it in, where NAME is not set."""
    return re.sub(r"\$\{\w+-([^}]*)\}", r"\1", text)


def test_the_image_holds_what_the_settings_need() -> None:
    (extras,) = re.findall(r"'/src\[([\w,]+)\]'", (ROOT / "deploy" / "docker" / "Dockerfile").read_text())
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"etcd", "rabbitmq", "nats"} <= set(extras.split(",")) <= known.keys()


@pytest.mark.req("S4-27", "S4-41")
def test_compose_starts_several_servers_on_one_store_with_settings_that_exist() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    servers = {name: each for name, each in services.items() if name.startswith("server-")}
    assert len(servers) == 3
    assert {"etcd", "rabbitmq", "nats"} <= services.keys()
    for name, each in servers.items():
        settings_known(each["environment"])
        assert each["environment"]["MANDOR_ADDRESS"] == f"https://{name}:8443"
        environ = {key: _filled(value) for key, value in each["environment"].items()}
        settings = load(ServerSettings, "server", environ=environ, flags={})
        queue = urlsplit(settings.task_queue)
        assert queue.hostname in services, "tasks go through the broker that is started here"
        broker = services[queue.hostname]["environment"]
        assert (queue.username, queue.password) == (broker["RABBITMQ_DEFAULT_USER"], broker["RABBITMQ_DEFAULT_PASS"])
        assert {"etcd", queue.hostname} <= set(each["depends_on"])
    assert len({each["environment"]["MANDOR_STORE"] for each in servers.values()}) == 1
    assert all(port.startswith("127.0.0.1:") for each in services.values() for port in each.get("ports", ()))


def test_our_own_importer_reads_compose() -> None:
    made = ComposeImporter().read([Source(str(COMPOSE), COMPOSE.read_text())], Options())
    assert {each.manifest["name"] for each in made.made} >= {"etcd", "server-1", "server-2", "server-3"}


@pytest.mark.req("S4-44")
def test_the_playbook_brings_what_the_unit_starts() -> None:
    ((play,),) = [yaml.safe_load((ROOT / "deploy" / "ansible" / "server.yaml").read_text())]
    tasks = {module: value for task in play["tasks"] for module, value in task.items() if "." in module}
    assert tasks["ansible.builtin.systemd_service"]["name"] == "mandor-server"
    copied = [task["ansible.builtin.copy"]["src"] for task in play["tasks"] if "ansible.builtin.copy" in task]
    assert (ROOT / "deploy" / "ansible" / copied[1]).exists()
    links = [task["ansible.builtin.file"] for task in play["tasks"] if "ansible.builtin.file" in task]
    unit = (ROOT / "deploy" / "systemd" / "mandor-server.service").read_text()
    assert f"ExecStart={links[0]['dest']} " in unit


@pytest.mark.req("S4-40", "S4-43")
def test_the_ways_to_run_it_are_compared_by_all_that_matters() -> None:
    text = (ROOT / "docs" / "guides" / "deploy.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and "★" in line]
    assert len(rows) == 7
    assert all(len(row) == 4 and all(cell.count("★") + cell.count("☆") == 5 for cell in row[1:]) for row in rows)
    assert "any number of workload clusters" in text


@pytest.mark.req("S4-42")
def test_the_configuration_of_the_guide_makes_it_co_located() -> None:
    (block,) = [each for each in blocks(ROOT / "docs" / "guides" / "deploy.md") if each.language == "yaml"]
    (profile,) = yaml.safe_load(block.text)["profiles"]
    (config,) = profile["pluginConfig"]
    assert ControlPlane.Args(**config["args"]) == ControlPlaneArgs(colocated=True)
