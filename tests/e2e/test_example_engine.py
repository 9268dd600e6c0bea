"""The example of an engine in a package of its own: installed, found by its entry point, used by an agent."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.components import find
from tests.e2e.cluster import Cluster, eventually

pytestmark = pytest.mark.real("bubblewrap")
PACKAGE = Path(__file__).parents[2] / "examples" / "engines" / "bubblewrap"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package, installed apart from mandor's own; nothing is fetched."""
    folder = tmp_path_factory.mktemp("package")
    source = shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    target = folder / "site"
    options = ["--no-index", "--no-build-isolation", "--no-deps", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def cluster(site: Path, tmp_path: Path) -> Iterator[Cluster]:
    """One node, `n1`, that was told of no engine: it has what is installed."""
    with Cluster(tmp_path) as running:
        running.start_server()
        path = ":".join([str(site), *sys.path[1:]])
        option = f"bubblewrap.program={find('bubblewrap')}"
        environ = {"PYTHONPATH": path, "MANDOR_ENGINE_OPTION": option}
        running.start_agent("n1", engines=("all",), environ=environ)
        running.wait_nodes("n1")
        yield running


@pytest.mark.req("S0-2")
def test_an_agent_finds_the_installed_engine_and_runs_a_workload_on_it(cluster: Cluster, tmp_path: Path) -> None:
    (node,) = cluster.items("nodes")
    assert "mounts" in node["status"]["engines"]["bubblewrap"]["extras"]
    script = "ls -d /root /home /usr; hostname > name; cat conf/greeting; exec sleep 1000"
    cluster.apply(
        json.dumps(
            {
                "name": "boxed",
                "replicas": 2,
                "engine": "bubblewrap",
                "command": ["sh", "-c", script],
                "files": [{"path": "conf/greeting", "content": "hello from inside\n"}],
                "options": {"bubblewrap": {"network": "none"}},
                "stop": {"grace": "0s"},
            }
        )
    )
    first, _ = cluster.wait_running("boxed", 2)
    assert first["status"]["engine"] == "bubblewrap"

    def said() -> list[str]:
        status, text = cluster.call("GET", f"/v1/instances/{first['meta']['name']}/logs")
        return text.decode().splitlines() if status == 200 else []

    eventually("it sees its own, and not the node's", lambda: {"/usr", "hello from inside"} <= set(said()))
    assert not {"/root", "/home"} & set(said())

    cluster.agents["n1"].kill()
    cluster.agents["n1"].start()
    cluster.wait_nodes("n1")
    cluster.wait_running("boxed", 2)
    assert all(not one["status"].get("restarts") for one in cluster.instances("boxed")), "they were adopted"
    assert cluster.call("DELETE", "/v1/workloads/boxed")[0] == 200
    eventually("nothing is left", lambda: not cluster.instances())
