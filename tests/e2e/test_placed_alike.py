"""`mandor plan`, the simulator and a real cluster place generated workloads on the same nodes.

Each seed generates manifests and changes of them. A real server and its agents apply them one after another, and are
asked for a plan before each. The same changes are the timeline of a scenario. After each change all three must have
every instance on the same node, and the same instances waiting.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandor.sim.cluster import SimCluster
from mandor.sim.compare import load_scenario
from mandor.sim.run import run_scenario
from tests.e2e.cluster import Cluster, eventually
from tests.e2e.test_cli_dev import dev, mandor

NODES = {
    "n1": {"cpu": 4, "memory": "4Gi", "zone": "a"},
    "n2": {"cpu": 2, "memory": "8Gi", "zone": "b"},
    "n3": {"cpu": 4, "memory": "4Gi", "zone": "b"},
}
PROFILE = "profiles: [{plugins: {multiPoint: {disabled: [{name: ImageLocality}]}}}]\n"
"""Agents report new images about once a minute: what ImageLocality knows depends on the time between two stages."""
STAGES = 8
STAGE_SECONDS = 60
QUIET = 8
"""Equal observations in a row after which a cluster has settled."""
Placements = dict[str, str]
"""Node by instance; empty: the instance waits."""


class Generator:
    """Manifests of one seed: new workloads, changed ones, and deletions."""

    def __init__(self, seed: int, engines: tuple[str, ...]) -> None:
        self._chance, self._engines = random.Random(f"placed alike {seed}"), engines
        self._known: dict[str, dict[str, Any]] = {}

    def stages(self) -> Iterator[dict[str, Any]]:
        """Yield `{"apply": manifest}` or `{"delete": name}`."""
        for number in range(STAGES):
            kind = self._chance.choice(["new", "new", "new", "scale", "change", "delete"]) if self._known else "new"
            name = self._chance.choice(sorted(self._known)) if self._known else ""
            if kind == "delete":
                del self._known[name]
                yield {"delete": name}
                continue
            if kind == "new":
                name = f"w{number}"
                self._known[name] = self._workload(name)
            elif kind == "scale":
                self._known[name] = {**self._known[name], "replicas": self._chance.randint(1, 5)}
            else:
                self._known[name] = {**self._known[name], "env": {"STEP": str(number)}}
            yield {"apply": self._known[name]}

    def _workload(self, name: str) -> dict[str, Any]:
        chance, engine = self._chance, self._chance.choice(self._engines)
        program = {"image": "app:1", "options": {"fake": {"start_delay": "50ms", "stop_delay": "50ms"}}}
        if engine == "process":
            program = {"command": ["sleep", "100000"], "stop": {"grace": "1s"}}
        team = chance.choice(["red", "blue"])
        return {
            "name": name,
            "labels": {"team": team},
            "engine": engine,
            **program,
            "replicas": chance.randint(1, 4),
            "priority": chance.choice([0, 0, 10, 20]),
            "resources": {"cpu": chance.choice(["100m", "700m", "1200m"]), "memory": chance.choice(["128Mi", "1Gi"])},
            "update": {"min_healthy": "1s"},
            "placement": self._placement(team),
        }

    def _placement(self, team: str) -> dict[str, Any]:
        strength = self._chance.choice(["must", "should", "prefer"])
        return self._chance.choice(
            [
                {},
                {"where": [{"rule": "zone == b", "strength": strength}]},
                {"spread": [{"over": "node", "strength": "should"}]},
                {"spread": [{"over": "zone", "match": {"team": team}, "strength": "should"}]},
                {"apart": [{"match": {"team": team}, "strength": "should" if strength == "must" else strength}]},
                {"near": [{"match": {"team": "red"}, "over": "zone", "strength": "prefer"}]},
            ]
        )


class RealCluster:
    """Applies stages to a real cluster over its API, and reads plans and placements."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def placements(self) -> Placements:
        return {
            each["meta"]["name"]: each["spec"].get("node", "")
            for each in self._cluster.items("instances")
            if "stop" not in each["spec"]
        }

    def _state(self) -> object:
        """Return the placements if nothing starts, stops or is rolled out, else a value of its own."""
        instances = self._cluster.items("instances")
        moving = [
            each
            for each in instances
            if "stop" in each["spec"] or each["status"].get("phase", "Pending") not in {"Running", "Pending"}
        ]
        waiting = {
            each["spec"]["workload"] for each in instances if each["status"].get("phase", "Pending") == "Pending"
        }
        rollouts = [
            each["status"].get("rollout", {}).get("phase")
            for each in self._cluster.items("workloads")
            if each["meta"]["name"] not in waiting
        ]
        unseen = [each for each in instances if not each["spec"].get("node") and not each["status"].get("message")]
        if moving or unseen or any(each != "Done" for each in rollouts):
            return object()
        return self.placements()

    def settle(self) -> Placements:
        """Wait until nothing changes, and until no pending instance fits any node according to a plan."""
        seen: list[object] = []

        def quiet() -> bool:
            seen.append(self._state())
            return len(seen) > QUIET and all(each == seen[-1] for each in seen[-QUIET:])

        eventually("the cluster has settled", quiet, patience=150)
        return self.placements()

    def planned(self, manifest: dict[str, Any], before: Placements) -> Placements:
        """Return the placements after an apply, according to `mandor plan`."""
        status, report = self._cluster.call("POST", "/v1/plan", json.dumps(manifest), content="application/yaml")
        assert status == 200, report
        assert report.get("complete", True), report
        found = dict(before)
        for each in report.get("ended", ()):
            found.pop(each["instance"], None)
        for each in report.get("victims", ()):
            found[each["instance"]] = ""
        for each in (*report.get("pending", ()), *report.get("waiting", ())):
            found[each["instance"]] = ""
        for each in report.get("placements", ()):
            found[each["instance"]] = each["node"]
        return found

    def change(self, stage: dict[str, Any]) -> None:
        if "delete" in stage:
            assert self._cluster.call("DELETE", f"/v1/workloads/{stage['delete']}")[0] == 200
        else:
            self._cluster.apply(json.dumps(stage["apply"]))

    def run(self, stages: list[dict[str, Any]]) -> list[Placements]:
        found = []
        for number, stage in enumerate(stages):
            before = self.placements()
            planned = self.planned(stage["apply"], before) if "apply" in stage else None
            self.change(stage)
            now = self.settle()
            assert planned is None or planned == now, f"stage {number}, plan and cluster: {stage}"
            found.append(now)
        return found

    def clear(self) -> None:
        for each in self._cluster.items("workloads"):
            self.change({"delete": each["meta"]["name"]})
        eventually("all instances are gone", lambda: not self._cluster.items("instances"), patience=120)


def simulate(folder: Path, nodes: list[dict[str, Any]], stages: list[dict[str, Any]]) -> list[Placements]:
    """Return the placements in a simulation at the end of each stage."""
    timeline = [
        {"at": f"{(number + 1) * STAGE_SECONDS}s"}
        | ({"submit": [stage["apply"]]} if "apply" in stage else {"delete": stage["delete"]})
        for number, stage in enumerate(stages)
    ]
    end = (len(stages) + 1) * STAGE_SECONDS
    path = folder / "scenario.yaml"
    (folder / "profile.yaml").write_text(PROFILE)
    scenario = {"name": "alike", "nodes": nodes, "workloads": [], "timeline": timeline, "end": f"{end}s"}
    path.write_text(json.dumps({**scenario, "strategies": {"as written": {"profile": "profile.yaml"}}}))
    found: list[Placements] = []

    async def read(cluster: SimCluster) -> None:
        await cluster.clock.sleep(STAGE_SECONDS)
        for _ in stages:
            await cluster.clock.sleep(STAGE_SECONDS - 1)
            found.append({each.meta.name: each.node for each in cluster.instances() if each.spec.stop is None})
            await cluster.clock.sleep(1)

    run_scenario(load_scenario(path), "as written", 0, extra=read)
    return found


def compare(folder: Path, real: RealCluster, nodes: list[dict[str, Any]], seed: int, engines: tuple[str, ...]) -> None:
    stages = list(Generator(seed, engines).stages())
    simulated = simulate(folder, nodes, stages)
    placed = real.run(stages)
    for number, (one, other) in enumerate(zip(simulated, placed, strict=True)):
        assert one == other, f"seed {seed}, stage {number}, simulation and cluster: {stages[number]}"
    assert any(any(each.values()) for each in placed)
    real.clear()


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A server and three agents of different sizes, with the fake and the process engine."""
    folder = tmp_path_factory.mktemp("alike")
    (folder / "profile.yaml").write_text(PROFILE)
    settings = {"MANDOR_SUSPECT_AFTER": "1m", "MANDOR_LOST_AFTER": "5m"}
    settings["MANDOR_SCHEDULER_CONFIG"] = str(folder / "profile.yaml")
    with Cluster(folder / "real", settings=settings) as cluster:
        cluster.start_server()
        for name, each in NODES.items():
            amounts = (f"cpu={each['cpu']}", f"memory={each['memory']}", "disk=10Gi")
            options = ["--engine-option", "fake.images=true", *(w for a in amounts for w in ("--capacity", a))]
            cluster.start_agent(name, engines=("fake", "process"), options=tuple(options))
        cluster.wait_nodes(*NODES)
        for name, each in NODES.items():
            done = cluster.mandor("label", name, f"zone={each['zone']}")
            assert done.returncode == 0, done.stderr
        yield RealCluster(cluster)


@pytest.mark.req("S3-20", "S3-38")
@pytest.mark.parametrize("seed", range(5))
def test_a_plan_a_simulation_and_a_cluster_place_generated_workloads_alike(
    real: RealCluster, tmp_path: Path, seed: int
) -> None:
    nodes = [
        {"name": name, "cpu": each["cpu"], "memory": each["memory"], "disk": "10Gi", "engines": ["fake", "process"]}
        | {"labels": {"zone": each["zone"]}}
        for name, each in NODES.items()
    ]
    compare(tmp_path, real, nodes, seed, ("fake", "process"))


@pytest.mark.req("S3-20")
def test_a_dev_cluster_places_generated_workloads_as_its_plan_and_a_simulation_of_it(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text(PROFILE)
    try:
        with dev(tmp_path, "--nodes", "3", "--scheduler-config", "profile.yaml") as (_, said):
            cluster = Cluster(tmp_path)
            cluster.urls = [said[0].split()[3]]
            nodes = eventually("three nodes are ready", lambda: ready_nodes(cluster))
            compare(tmp_path, RealCluster(cluster), nodes, 0, ("process",))
    finally:
        mandor(tmp_path, "dev", "--stop")


def ready_nodes(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the three nodes as lines of a scenario; nothing before all of them are ready."""
    ready = [each for each in cluster.items("nodes") if each["status"]["phase"] == "Ready"]
    lines = [
        {"name": each["meta"]["name"], "engines": ["process"], "cpu": f"{each['status']['capacity']['cpu_milli']}m"}
        | {key: each["status"]["capacity"][f"{key}_bytes"] for key in ("memory", "disk")}
        for each in ready
    ]
    return lines if len(lines) == 3 else []
