"""Work without room gets a real Incus instance, whose agent joins by itself, over TLS; idle, it is given back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mandor
from tests.components.etcd import Tls
from tests.components.gateway import gateway
from tests.components.incus import BRIDGE, IMAGE, Incus
from tests.e2e.cluster import Cluster, eventually

EXAMPLE = (Path(__file__).parents[2] / "examples" / "node-autoscale-incus.yaml").read_text(encoding="utf-8")
START = """
ln -s usr/lib usr/lib64 /
setsid "$0" -m mandor.cli.main agent --config /etc/mandor/mandor.toml </dev/null >/root/agent.log 2>&1 &
"""


def _options() -> dict[str, Any]:
    """Of an image without mandor: what runs here is mounted into its instances, to be read only."""
    source = Path(mandor.__file__).parents[1]
    folders = dict.fromkeys(["/usr", sys.base_prefix, sys.prefix, str(source)])
    return {
        "image": IMAGE,
        "devices": {
            f"folder{number}": {"type": "disk", "source": str(Path(folder).resolve()), "path": folder, "readonly": True}
            for number, folder in enumerate(folders)
        },
        "start": ["sh", "-c", START, sys.executable],
        "environment": {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "MANDOR_HEARTBEAT": "1s"},
    }


def _machines(incus: Incus) -> list[str]:
    return incus.cli("list", "--format", "csv", "--columns", "n").split()


@pytest.fixture
def cluster(incus: Incus, tmp_path: Path) -> Iterator[Cluster]:
    """A server without nodes, reached from the bridge of Incus."""
    tls = Tls.make(tmp_path / "tls", BRIDGE)
    listener = incus.enclosure.listen(BRIDGE)
    with Cluster(tmp_path / "cluster", settings={"MANDOR_LOST_AFTER": "30s"}) as made:
        url = f"https://{BRIDGE}:{listener.getsockname()[1]}"
        made.start_server(
            MANDOR_MACHINE_SERVERS=url,
            MANDOR_MACHINE_CA=str(tls.ca_file),
            MANDOR_EGRESS_ALLOW=f"*,unix:{incus.url.removeprefix('unix://')}",
        )
        port = int(made.urls[0].rpartition(":")[2])
        with gateway(listener, tls, port):
            try:
                yield made
            finally:
                for name in _machines(incus):
                    print(incus.run("exec", name, "--", "cat", "/root/agent.log").stdout.decode()[-3000:])
                incus.end_all()


@pytest.mark.req("S0-6", "S0-20", "S2-24", "S2-48")
def test_a_real_incus_instance_joins_by_itself_runs_what_waited_and_is_given_back(
    cluster: Cluster, incus: Incus
) -> None:
    text = EXAMPLE.replace("{image: mandor-node}", json.dumps(_options()))
    text = text.replace("provisioner: incus", f"provisioner: incus\n  settings: {{url: {json.dumps(incus.url)}}}")
    text = text.replace("idle_after: 10m", "idle_after: 1s")
    cluster.apply(text)
    (running,) = cluster.wait_running("reports", 1, patience=120)
    machine = running["spec"]["node"]
    assert machine.startswith("burst-")
    assert _machines(incus) == [machine]
    inside = incus.cli("exec", machine, "--", "ps", "-o", "args").splitlines()
    assert "sleep 3600" in inside, "it runs in the instance, and nowhere else"
    node = next(each for each in cluster.items("nodes") if each["meta"]["name"] == machine)
    assert node["status"]["capacity"]["cpu_milli"] == 1000
    status, _ = cluster.call("DELETE", "/v1/workloads/reports")
    assert status == 200
    eventually("it is given back", lambda: not _machines(incus), patience=120)
    eventually("its node is forgotten", lambda: not cluster.items("nodes"))
    steps = {"MachineOrdered", "MachineJoined", "MachineIdle", "MachineGone"}
    eventually("it is told", lambda: steps <= {each["spec"]["reason"] for each in cluster.items("events")})


@pytest.mark.req("S2-48")
def test_wrong_settings_of_a_provisioner_are_reported_and_can_be_corrected_and_deleted(
    cluster: Cluster, incus: Incus
) -> None:
    text = EXAMPLE.replace("{image: mandor-node}", json.dumps(_options()))
    wrong = text.replace("provisioner: incus", 'provisioner: incus\n  settings: {url: "https://127.0.0.1:1"}')
    cluster.apply(wrong)

    def failed() -> bool:
        scaling = cluster.items("node-pools")[0]["status"].get("scaling") or {}
        return "does not answer" in scaling.get("message", "")

    eventually("the error is in the status of the pool", failed, patience=120)
    found = cluster.mandor("doctor")
    assert "node-pool burst" in found.stdout, found.stdout
    assert cluster.call("DELETE", "/v1/node-pools/burst")[0] == 200
    cluster.apply(wrong)
    eventually("it fails again", failed, patience=120)
    cluster.apply(
        text.replace("provisioner: incus", f"provisioner: incus\n  settings: {{url: {json.dumps(incus.url)}}}")
    )
    cluster.wait_running("reports", 1, patience=240)
