"""A real server with a scheduler configuration and a plugin folder, changed while it runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually

PLUGIN = """\
from mandor.plugin import FilterPlugin

class OnlyOn(FilterPlugin):
    name = "OnlyOn"

    def filter_node(self, state, request, view):
        return view.name == "{node}"
"""
CONFIG = """\
profiles:
- schedulerName: default
- schedulerName: picky
  plugins:
    multiPoint:
      enabled:
      - name: OnlyOn
"""
WORK = "name: {name}\nreplicas: 2\nprofile: {profile}\nengine: process\ncommand: [sleep, '1000']\nstop: {{grace: 1s}}\n"


@pytest.mark.req("S0-3", "S1-28", "S1-29", "S1-30")
def test_profiles_and_plugins_are_changed_under_a_running_server(tmp_path: Path) -> None:
    file, plugins = tmp_path / "scheduler.yaml", tmp_path / "plugins"
    plugins.mkdir()
    file.write_text(CONFIG)
    (plugins / "only_on.py").write_text(PLUGIN.format(node="b"))
    settings = {"MANDOR_SCHEDULER_CONFIG": str(file), "MANDOR_PLUGINS": str(plugins)}
    with Cluster(tmp_path / "cluster", settings=settings) as cluster:
        server = cluster.start_server()
        for name in ("a", "b"):
            cluster.start_agent(name)
        cluster.wait_nodes("a", "b")

        planned = plan(cluster, WORK.format(name="first", profile="picky"))
        assert set(planned.values()) == {"b"}
        cluster.apply(WORK.format(name="first", profile="picky"))
        assert {one["spec"]["node"] for one in cluster.wait_running("first", 2)} == {"b"}
        planned = plan(cluster, WORK.format(name="usual", profile="default"))
        cluster.apply(WORK.format(name="usual", profile="default"))
        placed = {one["meta"]["name"]: one["spec"]["node"] for one in cluster.wait_running("usual", 2)}
        assert set(placed.values()) == {"a"}, "the emptier one"
        assert placed == planned

        (plugins / "only_on.py").write_text("class Broken(\n")
        eventually("the broken file is refused", lambda: "only_on.py:1: this plugin cannot be loaded" in server.text())
        planned = plan(cluster, WORK.format(name="second", profile="picky"))
        assert set(planned.values()) == {"b"}, "the old plugin goes on, in plans as well"
        (plugins / "only_on.py").write_text(PLUGIN.format(node="a"))
        eventually("the good one is taken up", lambda: "the scheduler configuration was reloaded" in server.text())
        cluster.apply(WORK.format(name="second", profile="picky"))
        assert {one["spec"]["node"] for one in cluster.wait_running("second", 2)} == {"a"}


def plan(cluster: Cluster, manifest: str) -> dict[str, str]:
    """Where each instance would go."""
    status, answer = cluster.call("POST", "/v1/plan", manifest, content="application/yaml")
    assert status == 200, answer
    return {each["instance"]: each["node"] for each in answer["placements"]}


def test_a_server_with_a_bad_configuration_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(CONFIG)
    script = "import sys; from mandor.cli.main import run; sys.exit(run(sys.argv[1:]))"
    options = ["--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--scheduler-config", str(file)]
    command = [sys.executable, "-c", script, "server", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"{file}:7: " in done.stderr
    assert "there is no plugin OnlyOn" in done.stderr
    assert not (tmp_path / "data").exists()
