"""Real servers: what happens reaches every receiver, signed, also when the server is killed in between."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.cluster import Cluster, eventually
from tests.e2e.hook import hooked

EXAMPLE = Path(__file__).parents[2] / "examples" / "webhook.yaml"
NOWHERE = """\
name: {name}
command: [sleep, infinity]
resources: {{cpu: 100m, memory: 8Mi}}
"""


@pytest.mark.req("S4-36", "S4-37")
def test_every_receiver_gets_events_after_a_killed_server_and_a_hanging_one_delays_no_other(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster, hooked() as ops, hooked() as upgrades, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = cluster.start_server()
        text = EXAMPLE.read_text().replace("9000", str(ops.server_port)).replace("9001", str(upgrades.server_port))
        text = text.replace('["task.*", "spare.*", "node.*"]', '["instance.*"]')
        hanging = f"kind: webhook\nname: hanging\nurl: http://localhost:{silent.getsockname()[1]}/\nsecret: hook\n"
        cluster.apply(f"{text}---\n{hanging}timeout: 100ms\n")
        cluster.apply(NOWHERE.format(name="first"))
        for hook in (ops, upgrades):
            eventually("what has no node is told", partial(hook.about, "first"))

        tested = cluster.mandor("webhook", "test", "ops")
        assert tested.returncode == 0, tested.stderr
        assert "Test" in ops.reasons()
        eventually("the log has it", lambda: "delivered" in cluster.mandor("webhook", "log", "upgrades").stdout)
        failing = cluster.mandor("webhook", "test", "hanging")
        assert failing.returncode == 1
        assert "no answer within 100ms" in failing.stderr
        eventually("it is seen to fail", lambda: "Failing" in cluster.mandor("get", "webhooks").stdout)

        server.kill()
        server.start()
        cluster.wait_ready()
        cluster.apply(NOWHERE.format(name="second"))
        for hook in (ops, upgrades):
            eventually("it goes on after a restart", partial(hook.about, "second"))
        kept = {
            f"{each['meta']['uid']}.{each['meta']['version']}"
            for each in cluster.items("events")
            if each["spec"]["about"].startswith("instance default/")
        }
        told = eventually("all are told", lambda: kept <= {each["id"] for each in upgrades.messages} and upgrades)
        assert all(each["specversion"] == "1.0" and each["source"].startswith("/mandor/") for each in told.messages)
        assert all(
            each["data"].get("severity", "normal") == "warning"
            for each in ops.messages
            if each["data"]["reason"] != "Test"
        )
