"""A simulated cluster writes the same statuses, conditions, events and decisions as a real one.

Real: the server and two agents as processes of their own, as `mandor dev` starts them, with the fake engine. Simulated:
the same manifests as the timeline of a scenario. Whatever is a time, an address or a random id is left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mandor.model.codec import encode
from mandor.model.decision import DecisionRecord
from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.node import Node
from mandor.model.record import Event
from mandor.model.workload import Workload
from mandor.sim.cluster import SimCluster
from mandor.sim.compare import load_scenario
from mandor.sim.run import run_scenario
from tests.e2e.cluster import Cluster, eventually

CPU = {"n1": 8, "n2": 2}
FAKE = {"start_delay": "500ms", "stop_delay": "500ms"}
RESTART = {"delay": "1s", "attempts": 1, "interval": "10m"}


def service(name: str, *, replicas: int = 1, cpu: str = "500m", **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "engine": "fake",
        "image": "app:1",
        "replicas": replicas,
        "resources": {"cpu": cpu, "memory": "64Mi"},
        "update": {"min_healthy": "1s"},
        "options": {"fake": FAKE},
        **more,
    }


def batch(name: str, fake: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "name": name,
        "type": "batch",
        "engine": "fake",
        "image": "app:1",
        "resources": {"cpu": "100m", "memory": "64Mi"},
        "options": {"fake": {**FAKE, **fake}},
        **more,
    }


WEB = service("web", replicas=2)
HERE = {"where": [{"rule": "disk == ssd", "strength": "should"}]}
STAGES: list[dict[str, Any]] = [
    WEB,
    service("relaxed", placement=HERE),
    batch("job", {"after": "1s"}),
    batch("failing", {"after": "1s", "exit_code": 3}, batch={"retries": 0}, restart=RESTART),
    {**WEB, "env": {"STEP": "2"}},
    {**WEB, "env": {"STEP": "2"}, "replicas": 4},
    {**WEB, "env": {"STEP": "2"}, "replicas": 1},
    service("waiting", placement={"where": ["node == n9"]}),
]
"""Manifests; each is applied when the cluster has settled after the one before."""
STAGE_SECONDS = 30
DONE = frozenset({"Running", "Succeeded", "Failed"})


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = (name for name in value if name not in {"at", "since"} and not name.endswith("_at"))
        return {name: without_times(value[name]) for name in kept}
    return [without_times(each) for each in value] if isinstance(value, list) else value


def described(items: list[Any]) -> dict[str, Any]:
    """Return what a cluster has written, by object: all that does not depend on time or chance."""
    found: dict[str, Any] = {"events": set()}
    for each in items:
        name, kind, spec, status = each["meta"]["name"], each["kind"], each["spec"], each.get("status", {})
        if kind == Event.kind and not spec["source"].startswith("server"):
            facts = (spec["about"], spec.get("type", "normal"), spec["reason"], spec["message"], spec["source"])
            found["events"].add(facts)
        elif kind == Workload.kind:
            found[f"workload {name}"] = without_times(status)
        elif kind == Instance.kind:
            found[f"instance {name}"] = without_times({"spec": spec, "status": status})
        elif kind == Node.kind:
            found[f"node {name}"] = {key: status.get(key) for key in ("phase", "reason", "conditions", "pressure")}
        elif kind == DecisionRecord.kind:
            found[f"decision {name}"] = {key: spec.get(key) for key in ("node", "message", "relaxed", "fault", "best")}
    return found


def settled(items: list[Any]) -> bool:
    """Return whether every instance has reached its last phase and every roll-out is over; `waiting` fits no node."""
    instances = [each for each in items if each["kind"] == Instance.kind and each["spec"]["workload"] != "waiting"]
    rollouts = [
        each["status"].get("rollout")
        for each in items
        if each["kind"] == Workload.kind and each["meta"]["name"] != "waiting" and each["spec"].get("type") != "batch"
    ]
    phases = {each["status"].get("phase", "Pending") for each in instances}
    stops = any("stop" in each["spec"] for each in instances)
    return phases <= DONE and not stops and all(each and each.get("phase") == "Done" for each in rollouts)


def run_real(folder: Path) -> dict[str, Any]:
    def everything() -> list[Any]:
        plurals = ("events", "workloads", "instances", "nodes", "decisions")
        return [each for plural in plurals for each in cluster.items(plural)]

    with Cluster(folder, settings={"MANDOR_SUSPECT_AFTER": "1m", "MANDOR_LOST_AFTER": "5m"}) as cluster:
        cluster.start_server()
        for name, cpu in CPU.items():
            options = (
                "--engine-option",
                "fake.images=true",
                "--capacity",
                f"cpu={cpu}",
                "--capacity",
                "memory=4Gi",
                "--capacity",
                "disk=10Gi",
            )
            cluster.start_agent(name, engines=("fake",), options=options)
        cluster.wait_nodes(*CPU)
        for manifest in STAGES:
            cluster.apply(json.dumps(manifest))
            wait_until_same(everything, settled)
        return described(everything())


def wait_until_same(everything: Callable[[], list[Any]], ready: Callable[[list[Any]], bool]) -> None:
    """Wait until the cluster is ready, and what is described stays the same for a few seconds."""
    last: list[Any] = []

    def quiet() -> bool:
        items = everything()
        last.append(described(items) if ready(items) else object())
        return len(last) > 30 and all(each == last[-1] for each in last[-30:])

    eventually("the cluster has settled", quiet, patience=120)


def run_simulated(folder: Path) -> dict[str, Any]:
    path = folder / "scenario.yaml"
    nodes = [
        {"name": name, "cpu": cpu, "memory": "4Gi", "disk": "10Gi", "engines": ["fake"]} for name, cpu in CPU.items()
    ]
    stages = [
        {"at": f"{number * STAGE_SECONDS}s", "phase": f"stage {number}", "submit": [manifest]}
        for number, manifest in enumerate(STAGES, 1)
    ]
    end = (len(STAGES) + 1) * STAGE_SECONDS
    scenario: dict[str, Any] = {
        "name": "same",
        "nodes": nodes,
        "workloads": [],
        "timeline": [{"at": "0s", "phase": "nodes"}, *stages],
    }
    scenario["end"] = f"{end}s"
    path.write_text(json.dumps(scenario))
    written: list[Object] = []

    async def read_at_end(cluster: SimCluster) -> None:
        await cluster.clock.sleep(end - 1)
        written.extend(each for kind in (Event, Workload, Instance, Node, DecisionRecord) for each in cluster.all(kind))

    loaded = load_scenario(path)
    run_scenario(loaded, next(iter(loaded.scenario.plans)), 0, extra=read_at_end)
    return described([msgspec.json.decode(encode(each)) for each in written])


def test_a_scenario_writes_the_same_in_the_simulator_and_in_a_real_cluster(tmp_path: Path) -> None:
    simulated = run_simulated(tmp_path)
    real = run_real(tmp_path / "real")
    assert simulated == real
