"""Real processes on two nodes: a drain moves them, a taint drives them off, and everyone serves on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, eventually

EXAMPLE = Path(__file__).parents[2] / "examples" / "maintenance.yaml"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path) as running:
        running.start_server()
        running.start_agent("n1")
        running.start_agent("n2")
        running.wait_nodes("n1", "n2")
        yield running


def change(cluster: Cluster, node: str, **spec: Any) -> None:
    status, answer = cluster.call("PATCH", f"/v1/nodes/{node}", {"spec": spec})
    assert status == 200, answer


def node(cluster: Cluster, name: str) -> Any:
    return next(each for each in cluster.items("nodes") if each["meta"]["name"] == name)


def places(cluster: Cluster) -> set[str]:
    return {each["spec"].get("node", "") for each in cluster.instances("shop")}


@pytest.mark.req("S0-20", "S0-35")
def test_a_drained_node_is_empty_and_comes_back_and_a_taint_drives_off(pair: Cluster) -> None:
    pair.apply(EXAMPLE.read_text())
    pair.wait_running("shop", 10)
    pools = pair.items("node-pools")
    eventually("the next window is known", lambda: pair.items("node-pools")[0]["status"].get("next_at"))
    assert [each["meta"]["name"] for each in pools] == ["default"]

    change(pair, "n1", drain={"deadline": "5m"})

    def drained() -> bool:
        ready = [each for each in pair.instances("shop", phase="Running") if each["status"].get("ready")]
        assert len([each for each in ready if "stop" not in each["spec"]]) >= 9, "the budget holds at every look"
        found = node(pair, "n1")["status"].get("drain")
        return bool(found) and found["phase"] == "Drained"

    eventually("n1 is drained", drained)
    assert places(pair) == {"n2"}
    pair.wait_running("shop", 10)
    wanted = {"Draining", "Drained", "Moved"}
    eventually("it is told", lambda: wanted <= {each["spec"]["reason"] for each in pair.items("events")})

    change(pair, "n1", drain=None)
    eventually("n1 takes work again", lambda: "drain" not in node(pair, "n1")["status"])
    broken = {"key": "broken", "effect": "NoExecute"}
    change(pair, "n2", cordoned=True, taints=[{"key": "gone", "effect": "NoExecute"}, broken])
    eventually("all have left n2", lambda: places(pair) == {"n1"})
    pair.wait_running("shop", 10)
