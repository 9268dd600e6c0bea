"""Machines for virtual machines, as a person has them: two `make` commands, the document's curl lines, the CLI."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scripts.components import environment
from tests.components.ports import free_port
from tests.e2e.cluster import Cluster, Program, eventually

ROOT = Path(__file__).parent.parent.parent
MANDOR = [sys.executable, "-m", "mandor.cli.main"]

SCHEDULE = """curl -X POST "http://127.0.0.1:8080/schedule" \\
     -H "Content-Type: application/json" \\
     -d '{
           "requested_cpu": 4,
           "requested_memory": 8192,
           "requested_pool": "default",
           "dedicated": false
         }'
"""
DEDICATED = """curl -X POST http://localhost:8080/schedule -H "Content-Type: application/json" -d '{
  "requested_cpu": 8,
  "requested_memory": 16384,
  "requested_pool": "ai",
  "dedicated": true
}'
"""


def recipe(target: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of a target in the Makefile, and its environment."""
    make = shutil.which("make")
    assert make is not None
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    ask = [make, "-n", "--no-print-directory", "ARGS=", target]  # the tests may run inside of `make` themselves
    told = subprocess.run(ask, cwd=ROOT, env=plain, capture_output=True, text=True, check=True).stdout
    line = told.replace("\\\n", " ").strip().splitlines()[-1]
    before, _, command = line.partition("exec ")
    words = [sys.executable if each.endswith("bin/python") else each for each in command.split()]
    environ = dict(re.findall(r"(MANDOR_\w+)=(\S+)", before))
    return words, {name: re.sub(r"^\$\{\w+:-(.*)\}$", r"\1", value) for name, value in environ.items()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`make node-up` and `make api-up`, on ports of their own."""
    folder = tmp_path_factory.mktemp("vm")
    nodes, _ = recipe("node-up")
    port = free_port()
    machines = Program("node-up", [*nodes, str(port)], folder / "node-up.log")
    machines.command[1] = str(ROOT / machines.command[1])
    command, environ = recipe("api-up")
    assert environ["MANDOR_INVENTORY"] == "http://127.0.0.1:8090/nodes"
    with Cluster(folder) as cluster:
        machines.start()
        cluster.servers.append(Program("api-up", [], folder / "api-up.log"))
        api = free_port()
        command[command.index("--data") + 1] = str(folder / "data")
        command[command.index("--listen") + 1] = f"127.0.0.1:{api}"
        environ["MANDOR_INVENTORY"] = f"http://127.0.0.1:{port}/nodes"
        cluster.servers[0].command, cluster.servers[0].env = command, environ
        cluster.urls.append(f"http://127.0.0.1:{api}")
        cluster.servers[0].start()
        try:
            cluster.wait_ready()
            eventually("the machines are known", lambda: cluster.call("GET", "/v1/nodes")[1]["items"])
            yield cluster
        finally:
            machines.kill()


def curl(cluster: Cluster, line: str) -> dict[str, Any]:
    """The document's line as it stands, but for the port."""
    port = cluster.urls[0].rpartition(":")[2]
    done = subprocess.run(
        ["bash", "-c", line.replace("8080", port).replace("curl ", "curl -sS ", 1)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | environment("curl"),
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def result(cluster: Cluster, task: str) -> dict[str, Any]:
    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = cluster.call("GET", f"/result/{task}")[1]
        return None if found["status"] == "processing" else found

    found: dict[str, Any] = eventually(f"task {task} has a result", ended)
    return found


def mandor(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"MANDOR_SERVER": cluster.urls[0]}
    return subprocess.run([*MANDOR, *words], capture_output=True, text=True, env=environ, timeout=120, check=False)


@pytest.mark.real("curl")
@pytest.mark.req("S4-15")
@pytest.mark.req("S4-16")
@pytest.mark.req("S4-18")
def test_the_document_s_curl_lines_work_as_they_stand(cluster: Cluster) -> None:
    known = {each["name"]: each for each in json.loads((ROOT / "examples/baremetal/machines.json").read_text())}
    first = result(cluster, curl(cluster, SCHEDULE)["task_id"])
    assert first["status"] == "completed"
    assert known[first["result"]["name"]]["pool"] == "default"
    assert known[first["result"]["name"]]["ip"] == first["result"]["ip"]
    alone = result(cluster, curl(cluster, DEDICATED)["task_id"])
    assert alone["status"] == "completed"
    assert known[alone["result"]["name"]]["pool"] == "ai"


@pytest.mark.real("curl")
@pytest.mark.req("S4-17")
def test_the_documentation_is_at_docs(cluster: Cluster) -> None:
    port = cluster.urls[0].rpartition(":")[2]
    words = ["curl", "-sS", f"http://localhost:{port}/docs"]
    environ = os.environ | environment("curl")
    page = subprocess.run(words, capture_output=True, text=True, check=True, env=environ).stdout
    assert "swagger" in page.lower()


def test_a_person_places_confirms_lists_and_gives_back(cluster: Cluster) -> None:
    placed = mandor(cluster, "vm", "place", "--cpu", "4", "--memory", "8192", "--pool", "default")
    assert placed.returncode == 0, placed.stderr
    task, state, *where = placed.stdout.split()
    assert (state, where[0]) == ("Placed", "on")
    assert task in mandor(cluster, "get", "tasks").stdout
    told = mandor(cluster, "explain", f"task/{task}")
    assert told.returncode == 0, told.stderr
    assert where[1] in told.stdout
    assert mandor(cluster, "vm", "confirm", task).stdout.split()[1] == "Confirmed"
    assert mandor(cluster, "vm", "cancel", task).stdout.split()[1] == "Released"


def test_a_pool_that_does_not_exist_is_refused_with_a_guess(cluster: Cluster) -> None:
    refused = mandor(cluster, "vm", "place", "--cpu", "4", "--memory", "8192", "--pool", "defautl")
    assert refused.returncode != 0
    assert "there is no pool defautl" in refused.stderr
    assert "default" in refused.stderr.partition("defautl")[2]


def test_with_a_broker_that_is_away_tasks_are_taken_and_the_server_shows_what_is_wrong(tmp_path: Path) -> None:
    away = {"MANDOR_TASK_QUEUE": f"amqp://guest:guest@127.0.0.1:{free_port()}/"}
    with Cluster(tmp_path, settings=away) as cluster:
        cluster.start_server()
        cluster.start_agent("bm-0", engines=("fake",))
        cluster.wait_nodes("bm-0")
        told = eventually("it says so", lambda: cluster.call("GET", "/readyz")[1].get("notes"))
        assert any("RabbitMQ" in each for each in told)
        ask = json.dumps({"requested_cpu": 1, "requested_memory": 64, "requested_pool": "default", "dedicated": False})
        status, body = cluster.call("POST", "/schedule", ask)
        assert status == 200
        assert cluster.call("GET", f"/result/{body['task_id']}")[1] == {"status": "processing"}


def listed(number: int, usage: float, vms: int) -> dict[str, Any]:
    """A machine with 16 cores, as the node API of the document's project lists it."""
    return {
        "name": f"bm{number:02}",
        "ip": f"10.0.0.{number}",
        "cpu": 16,
        "memory": 32768,
        "storage": 1000,
        "usage_cpu": usage,
        "usage_mem": usage,
        "pool": "default",
        "dedicated": False,
        "model": "DL360 Gen10",
        "max_vms": 20,
        "current_vms": vms,
    }


@contextmanager
def serving(folder: Path, machines: list[dict[str, Any]], **settings: str) -> Iterator[Cluster]:
    (folder / "machines.json").write_text(json.dumps(machines))
    chosen = {"MANDOR_INVENTORY": str(folder / "machines.json"), "MANDOR_TASK_ATTEMPTS": "1"} | settings
    with Cluster(folder / "cluster", settings=chosen) as cluster:
        cluster.start_server()
        eventually("the machines are known", lambda: len(cluster.items("nodes")) == len(machines))
        yield cluster


def placements(cluster: Cluster, count: int) -> list[str]:
    """The machines of some requests for one core, in order; an empty name where none was found."""
    body = {"requested_cpu": 1, "requested_memory": 1024, "requested_pool": "default", "dedicated": False}
    tasks = [cluster.call("POST", "/schedule", body)[1]["task_id"] for _ in range(count)]
    return [result(cluster, each).get("result", {}).get("name", "") for each in tasks]


@pytest.mark.req("S4-8", "S4-10")
def test_machines_whose_usage_is_given_as_shares_are_not_taken_for_empty(tmp_path: Path) -> None:
    machines = [listed(number, 1.0 if number % 2 else 0.25, 10 if number % 2 else 3) for number in range(1, 9)]
    with serving(tmp_path, machines) as cluster:
        found = placements(cluster, 50)
    free = {each["name"] for each in machines if each["usage_cpu"] < 1}
    assert {each: found.count(each) for each in free} == dict.fromkeys(free, 12), "each has 12 free cores"
    assert found.count("") == 2


@pytest.mark.req("S4-39", "S4-42")
def test_the_machine_that_carries_the_server_takes_no_virtual_machine(tmp_path: Path) -> None:
    """The second machine has the address of the server, and would be the best by its usage."""
    machines = [listed(1, 0.0, 0), listed(2, 0.5, 1)]
    with serving(tmp_path, machines, MANDOR_ADDRESS="https://10.0.0.2:8443") as cluster:
        eventually(
            "it is known", lambda: "ControlPlaneNode" in {each["spec"]["reason"] for each in cluster.items("events")}
        )
        assert placements(cluster, 5) == ["bm01"] * 5
        nodes = {each["meta"]["name"]: each["meta"].get("labels", {}) for each in cluster.items("nodes")}
        assert nodes == {"bm01": {}, "bm02": {"control-plane": "true"}}
