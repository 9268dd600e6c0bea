"""A plugin that hangs where it cannot be broken off costs its server a restart, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually

PLUGIN = """\
import re, socket, time
from mandor.plugin import FilterPlugin

class Hangs(FilterPlugin):
    name = "Hangs"

    def filter_node(self, state, request, view):
        if request.key.name.startswith("bad"):
            {way}
        return True
"""
CONFIG = """\
profiles:
- schedulerName: default
- schedulerName: hanging
  plugins: {multiPoint: {enabled: [{name: Hangs}]}}
"""
WORK = "name: {name}\nprofile: {profile}\nengine: process\ncommand: [sleep, '1000']\nstop: {{grace: 1s}}\n"
IN_C = "re.match(r'(a|a)*b', 'a' * 64)"
ASLEEP = "time.sleep(100000)"
WAITING = "pair = socket.socketpair(); pair[0].recv(1)"


@pytest.mark.parametrize("way", [IN_C, ASLEEP, WAITING], ids=["holds the interpreter", "sleeps", "waits for a peer"])
def test_the_server_comes_back_without_the_plugin_that_hangs(tmp_path: Path, way: str) -> None:
    file, plugins = tmp_path / "scheduler.yaml", tmp_path / "plugins"
    plugins.mkdir()
    file.write_text(CONFIG)
    (plugins / "hangs.py").write_text(PLUGIN.format(way=way))
    settings = {"MANDOR_SCHEDULER_CONFIG": str(file), "MANDOR_PLUGINS": str(plugins), "MANDOR_PLUGIN_HANG": "2s"}
    with Cluster(tmp_path / "cluster", settings=settings) as cluster:
        server = cluster.start_server()
        cluster.start_agent("n1")
        cluster.wait_nodes("n1")
        cluster.apply(WORK.format(name="fine", profile="hanging"))
        cluster.wait_running("fine", 1)

        cluster.apply(WORK.format(name="bad", profile="hanging"))
        cluster.wait_running("bad", 1)

        assert server.running
        notes = cluster.call("GET", "/readyz")[1]["notes"]
        assert len(notes) == 1
        assert notes[0].startswith("the plugin Hangs is disabled: it hung at hangs.py, line")
        assert "the plugin Hangs hangs: restarting the server without it" in server.text()
        told = eventually(
            "an event tells of it",
            lambda: [each for each in cluster.items("events") if each["spec"]["reason"] == "PluginDisabled"],
        )
        assert told[0]["spec"]["type"] == "warning"
        assert len(cluster.wait_running("fine", 1)) == 1

        server.end()
        assert server.process is not None
        assert server.process.returncode == 0
